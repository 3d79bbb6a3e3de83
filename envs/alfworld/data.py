"""The original data set: which game files a split of the download holds."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from envs.alfworld.game import TASK_TYPES

SPLITS = {"train": "train", "seen": "valid_seen", "unseen": "valid_unseen"}  # split -> folder

_DATA_SET = "json_2.1.1"
_LEFT_OUT = ("movable", "Sliced")  # in a path: tasks that text games don't have
HOW_TO_GET = (
    "`pip install alfworld && alfworld-download` fetches the data (or unpack json_2.1.1_json.zip and "
    "json_2.1.3_tw-pddl.zip of ALFWorld's releases into one folder)"
)
_TAIL = 4096  # bytes
# Quotes within the texts of a game file are escaped: this can only be the field itself.
_SOLVABLE = re.compile(rb'"solvable"\s*:\s*(true|false)')


def game_files(folder: str | Path, split: str) -> list[Path]:
    """Game files of a split, as the original selects them: of the six task types, and solvable.

    Args:
        folder: the download's ``json_2.1.1``, or the folder that holds it.
        split: "train", "seen" (evaluation in distribution) or "unseen" (out of distribution).

    Returns:
        Paths of ``game.tw-pddl``, sorted by the path below the split, so in the same order on any machine. Links are
        followed, but not back into a folder that they are in.

    Raises:
        OSError: if a folder can't be read.
        ValueError: if the split is unknown, the folder is missing or without games, or a game file is damaged.
    """
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    where = Path(folder)
    where = (where / _DATA_SET if (where / _DATA_SET).is_dir() else where) / SPLITS[split]
    if not where.is_dir():
        raise ValueError(f"no folder {where}; {HOW_TO_GET}")
    trials: dict[str, Path] = {}
    above: dict[str, frozenset[tuple[int, int]]] = {}  # folder -> it and all that it is in
    for directory, folders, names in os.walk(where, followlinks=True, onerror=_raise):
        place, around = os.stat(directory), above.get(os.path.dirname(directory), frozenset())
        if (place.st_dev, place.st_ino) in around:
            folders.clear()
            continue
        above[directory] = around | {(place.st_dev, place.st_ino)}
        below = Path(directory).relative_to(where).as_posix()
        if {"traj_data.json", "game.tw-pddl"} <= set(names) and not any(word in below for word in _LEFT_OUT):
            trials[below] = Path(directory)
    paths = [trials[below] / "game.tw-pddl" for below in sorted(trials) if _of_known_type(trials[below])]
    games = [path for path in paths if _solvable(path)]
    if not games:
        raise ValueError(
            f"no solvable game in {where}: looked for trials with game.tw-pddl and traj_data.json; {HOW_TO_GET}"
        )
    return games


def _raise(error: OSError) -> None:
    """What can't be read would be missing from panels without a word."""
    raise error


def _of_known_type(trial: Path) -> bool:
    """By the name of the task's folder, which saves reading; else by traj_data.json."""
    if trial.parent.name.partition("-")[0] in TASK_TYPES:
        return True
    path = trial / "traj_data.json"
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))["task_type"] in TASK_TYPES
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path}: damaged, or without task_type: {error!r}") from error


def _solvable(path: Path) -> bool:
    """The field of a game file, found without parsing the rest: mostly it stands near the end."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL))
        found = _SOLVABLE.search(file.read())
    if found:
        return found[1] == b"true"
    try:
        return bool(json.loads(path.read_text(encoding="utf-8-sig")).get("solvable"))
    except (ValueError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path}: damaged, no JSON object: {error}") from error
