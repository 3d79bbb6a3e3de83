"""Which files of the download are played, in which order, and what is said where they are missing or damaged."""

import json
import os

import pytest

from envs.alfworld.data import SPLITS, game_files

DOWNLOAD = "alfworld-download"


def add(folder, name, *, trajectory=None, game=None, **fields):
    """A trial of the download: <split>/<task>/<trial>."""
    trial = folder / name
    trial.mkdir(parents=True)
    content = json.dumps({"pddl_problem": "..", "solvable": True} | fields) if game is None else game
    (trial / "game.tw-pddl").write_text(content)
    (trial / "traj_data.json").write_text(json.dumps({"task_type": "none"}) if trajectory is None else trajectory)


def names(folder, split="train"):
    """The trials found, without the folder they are in."""
    files = game_files(folder, split)
    assert {path.name for path in files} == {"game.tw-pddl"}
    return [path.parent.relative_to(path.parents[2]).as_posix() for path in files]


def test_splits_have_folders_of_their_own(tmp_path):
    for split, folder in SPLITS.items():
        add(tmp_path / "json_2.1.1", f"{folder}/pick_and_place_simple-Mug-None-Desk-1/trial_{split}")
    for split in SPLITS:
        for folder in (tmp_path, tmp_path / "json_2.1.1", str(tmp_path)):
            assert names(folder, split) == [f"pick_and_place_simple-Mug-None-Desk-1/trial_{split}"]


def test_the_order_is_that_of_the_paths(tmp_path, monkeypatch):
    trials = [
        "look_at_obj_in_light-Mug-None-Desk-2/trial_b",
        "pick_and_place_simple-Mug-None-Desk-1/trial_a",
        "pick_and_place_simple-Mug-None-Desk-1/trial_c",
        "pick_and_place_simple-Mug-None-Desk-10/trial_a",
        "pick_two_obj_and_place-Mug-None-Desk-1/trial_a",
    ]
    for trial in (trials[i] for i in (3, 1, 4, 0, 2)):
        add(tmp_path, f"train/{trial}")
    assert names(tmp_path) == trials
    walk = os.walk
    monkeypatch.setattr(os, "walk", lambda *args, **kwargs: reversed(list(walk(*args, **kwargs))))
    assert names(tmp_path) == trials


def test_what_the_original_leaves_out(tmp_path):
    add(tmp_path, "train/pick_and_place_simple-Mug-None-Desk-1/kept")
    add(tmp_path, "train/pick_and_place_with_movable_recep-Mug-Pan-Desk-1/movable")
    add(tmp_path, "train/pick_and_place_simple-AppleSliced-None-Desk-1/sliced")
    add(tmp_path, "train/pick_and_place_simple-Mug-None-Desk-1/unsolvable", solvable=False)
    add(tmp_path, "train/pick_and_place_simple-Mug-None-Desk-1/unchecked", game='{"pddl_problem": ".."}')
    add(tmp_path, "train/toggle_simple-Lamp-None-Desk-1/other")
    add(tmp_path, "train/pick_and_place_simple-Mug-None-Desk-1/no_game")
    add(tmp_path, "train/pick_and_place_simple-Mug-None-Desk-1/no_trajectory")
    (tmp_path / "train/pick_and_place_simple-Mug-None-Desk-1/no_game/game.tw-pddl").unlink()
    (tmp_path / "train/pick_and_place_simple-Mug-None-Desk-1/no_trajectory/traj_data.json").unlink()
    assert names(tmp_path) == ["pick_and_place_simple-Mug-None-Desk-1/kept"]


def test_where_the_data_lies_does_not_matter(tmp_path):
    """Only the path below the split is looked at for the words."""
    folder = tmp_path / "immovable Sliced things"
    add(folder, "train/pick_and_place_simple-Mug-None-Desk-1/trial")
    assert len(names(folder)) == 1


def test_links_are_followed_but_not_in_circles(tmp_path):
    """One back up, two into each other's folders, whose games are met under both names; and one elsewhere."""
    add(tmp_path, "elsewhere/trial_b")
    add(tmp_path, "train/pick_and_place_simple-Mug-None-Desk-1/trial_a")
    add(tmp_path, "train/pick_and_place_simple-Mug-None-Desk-2/trial_a")
    places = tmp_path / "train"
    (places / "loop").symlink_to(".")
    for a, b in ((1, 2), (2, 1)):
        link = places / f"pick_and_place_simple-Mug-None-Desk-{a}/pick_and_place_simple-again"
        link.symlink_to(f"../pick_and_place_simple-Mug-None-Desk-{b}")
    (places / "pick_and_place_simple-Mug-None-Desk-3").symlink_to(tmp_path / "elsewhere")
    found = game_files(tmp_path, "train")
    assert [path.parent.relative_to(places).as_posix() for path in found] == [
        "pick_and_place_simple-Mug-None-Desk-1/pick_and_place_simple-again/trial_a",
        "pick_and_place_simple-Mug-None-Desk-1/trial_a",
        "pick_and_place_simple-Mug-None-Desk-2/pick_and_place_simple-again/trial_a",
        "pick_and_place_simple-Mug-None-Desk-2/trial_a",
        "pick_and_place_simple-Mug-None-Desk-3/trial_b",
    ]


def test_a_folder_that_cannot_be_read_is_not_passed_over(tmp_path, monkeypatch):
    add(tmp_path, "train/pick_and_place_simple-Mug-None-Desk-1/trial")
    add(tmp_path, "train/pick_and_place_simple-Mug-None-Desk-2/trial")
    scan = os.scandir

    def scan_but_one(path):
        if str(path).endswith("Desk-2"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", scan_but_one)
    with pytest.raises(PermissionError, match="Desk-2"):
        game_files(tmp_path, "train")


def test_folders_of_other_names_are_read(tmp_path):
    add(tmp_path, "train/renamed/a", trajectory='{"task_type": "look_at_obj_in_light"}')
    add(tmp_path, "train/renamed/b", trajectory='{"task_type": "pick_and_place_with_recep"}')
    assert names(tmp_path) == ["renamed/a"]


@pytest.mark.parametrize(
    ("game", "played"),
    [
        ('{"solvable": true, "walkthrough": ["go"]}', True),
        ('{"solvable"\n:\r\n false, "walkthrough": []}', False),
        ('{"solvable": 1}', True),
        ('{"solvable": null}', False),
        ('{"solvable": true, "pddl_problem": "' + "x" * 50_000 + '"}', True),
        ('{"pddl_problem": "' + "x" * 50_000 + '", "solvable": true}', True),
        (json.dumps({"solvable": False, "grammar": '"solvable": true' + "x" * 5_000}), False),
        (json.dumps({"grammar": '"solvable": true', "solvable": False}), False),
        (json.dumps({"grammar": '"solvable": true'}), False),
    ],
)
def test_solvable_is_found_wherever_it_stands(tmp_path, game, played):
    add(tmp_path, "train/pick_and_place_simple-Mug-None-Desk-1/first")
    add(tmp_path, "train/pick_and_place_simple-Mug-None-Desk-1/second", game=game)
    assert len(names(tmp_path)) == 1 + played


def test_missing_folders_and_splits(tmp_path):
    with pytest.raises(ValueError, match=r"no folder .*absent.train; .*" + DOWNLOAD):
        game_files(tmp_path / "absent", "train")
    with pytest.raises(ValueError, match="split must be one of train, seen, unseen, got 'valid_seen'"):
        game_files(tmp_path, "valid_seen")
    (tmp_path / "train").mkdir()
    with pytest.raises(ValueError, match=r"no solvable game in .*train: .*" + DOWNLOAD):
        game_files(tmp_path, "train")


@pytest.mark.parametrize("game", ["", "not json", '{"pddl_problem": "cut', "[1, 2]", '"text"'])
def test_damaged_files_are_named(tmp_path, game):
    add(tmp_path, "train/pick_and_place_simple-Mug-None-Desk-1/trial", game=game)
    with pytest.raises(ValueError, match=r"trial.game\.tw-pddl: damaged, no JSON object"):
        game_files(tmp_path, "train")


@pytest.mark.parametrize("trajectory", ["", "{", "[]", "{}"])
def test_damaged_trajectories_are_named(tmp_path, trajectory):
    add(tmp_path, "train/renamed/trial", trajectory=trajectory)
    with pytest.raises(ValueError, match=r"traj_data\.json: damaged, or without task_type"):
        game_files(tmp_path, "train")
