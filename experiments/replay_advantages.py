"""Replay recorded batches (.npz) through the estimators: the released code's inputs, returns and outputs.

Two differences are deliberate, and are told apart instead of failing. A prompt group with a single step (or
trajectory) gives 0 here, the raw score there. And where all returns of a group are equal, or a step sits on
its group's mean, the advantage is exactly 0 here, while float32 rounding there can leave a residue of one or
two units in the last place, which a standard deviation of 0 or of the same residue blows up to something near 1,
and which makes the level take its weight. A value is taken for such a residue only if it is one of the few numbers
that this can give.
"""

from __future__ import annotations

import dataclasses
import math
import re
import warnings
import zipfile
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hgpo_jax.config import EstimatorConfig, GiGPOConfig, GRPOConfig, HGPOConfig
from hgpo_jax.estimators.advantages import make_estimator, size_bucket, step_signals
from hgpo_jax.estimators.returns import discounted_returns
from hgpo_jax.types import StepSignals

TOLERANCE = 2e-5  # absolute, or relative to the recorded value
MOST_COMBINATIONS = 1_000_000  # of residues that are tried for one value
PENALTY = 0.1  # of an invalid action, in the released runs
PER_STEP = ("state", "group", "trajectory", "reward", "action_valid", "discounted_return", "step_return")
NOT_OUTPUTS = {*PER_STEP, "gamma", "response_mask", "token_level_rewards"}


@dataclasses.dataclass
class Report:
    """What came of one file."""

    name: str
    steps: int = 0
    outputs: int = 0  # arrays compared, the two returns included
    worst: float = 0.0  # over all values: the smaller of the absolute and the relative difference
    problems: list[str] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)


def replay_directory(directory: Path) -> list[Report]:
    """One report for each .npz file in the directory, in order of name."""
    if not directory.is_dir():
        return [Report(str(directory), problems=["no such directory"])]
    reports, recordings = [], []
    for path in sorted(directory.glob("*.npz")):
        reports.append(Report(path.name))
        try:
            recordings.append(_load(path))
        except (ValueError, TypeError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            reports[-1].problems.append(f"damaged: {error}")
            recordings.append(None)
    # One padded size for all the files: each kind of output is compiled once.
    size = size_bucket(max((len(r["state"]) for r in recordings if r), default=1))
    for report, recording in zip(reports, recordings, strict=True):
        if recording:
            try:
                _replay(report, recording, size)
            except (ValueError, TypeError, OverflowError) as error:  # the other files are still replayed
                report.problems.append(f"damaged: {error}")
    return reports


def parse_output(name: str) -> EstimatorConfig | None:
    """The settings behind an output's name, None where it is unknown."""
    mode = r"(mean_norm|mean_std_norm)"
    number = r"(\d+(?:\.\d*)?(?:e[+-]?\d+)?)"
    if found := re.fullmatch(rf"hgpo/K=(\d+)/alpha={number}/{mode}/base=(True|False)", name):
        length, alpha, norm, base = found.groups()
        return HGPOConfig(int(length), float(alpha), norm == "mean_std_norm", 2, base == "True")
    if found := re.fullmatch(rf"gigpo/w={number}/{mode}", name):
        return GiGPOConfig(float(found[1]), found[2] == "mean_std_norm")
    if found := re.fullmatch(rf"episode_across_(steps|trajectories)/{mode}", name):
        over = "steps" if found[1] == "steps" else "trajectories"
        return GRPOConfig(normalize_std=found[2] == "mean_std_norm", over=over)
    return None


def _load(path: Path) -> dict[str, np.ndarray]:
    """All arrays of a recording, with shapes checked; no pickled objects."""
    with path.open("rb") as file:  # np.load leaves a damaged file open when it is given the path
        archive = np.load(file, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise ValueError("not a .npz archive")
        recording = {name: archive[name] for name in archive.files}
    missing = [name for name in (*PER_STEP, "gamma") if name not in recording]
    if missing:
        raise ValueError(f"lacks {', '.join(missing)}")
    steps = len(recording["reward"])
    for name in recording:
        shape = recording[name].shape
        if (name in PER_STEP or name not in NOT_OUTPUTS) and shape != (steps,):
            raise ValueError(f"{name} has shape {list(shape)}, expected one value for each of {steps} steps")
    return recording


def _replay(report: Report, recording: dict[str, np.ndarray], size: int) -> None:
    configs = {name: parse_output(name) for name in recording if name not in NOT_OUTPUTS}
    report.problems += [f"unknown output {name}" for name, config in configs.items() if config is None]
    deepest = len(recording["reward"])  # no history is longer, and a level takes memory
    for name, config in configs.items():
        if isinstance(config, HGPOConfig) and config.context_length > deepest:
            report.problems.append(f"{name}: K is beyond the {deepest} steps of the recording")
            configs[name] = None
    if not configs:
        report.problems.append("holds no estimator's output")
    levels = max([c.context_length for c in configs.values() if isinstance(c, HGPOConfig)], default=0)
    inputs = [recording[name] for name in ("state", "group", "trajectory", "reward", "action_valid")]
    gamma = float(recording["gamma"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # single rollouts: the notes tell where they matter
        signals = step_signals(
            *inputs, estimator=HGPOConfig(levels), gamma=gamma, invalid_action_penalty=PENALTY, size=size
        )
    report.steps = steps = len(recording["reward"])
    returns = discounted_returns(recording["reward"], recording["trajectory"], gamma)
    _compare(report, "discounted_return", recording["discounted_return"], returns)
    _compare(report, "step_return", recording["step_return"], np.asarray(signals.step_return)[:steps])
    differences = DeliberateDifferences(signals)
    for name, config in configs.items():
        if config is not None:
            computed = _run(config, signals)[:steps]
            _compare(report, name, recording[name], computed, config, differences)
    report.notes += differences.notes()


def _run(config: EstimatorConfig, signals: StepSignals) -> np.ndarray:
    levels = config.context_length + 1 if isinstance(config, HGPOConfig) else 1
    advantages, _ = make_estimator(config)(signals._replace(group_ids=signals.group_ids[:levels]))
    return np.asarray(advantages)


def _compare(
    report: Report,
    name: str,
    recorded: np.ndarray,
    computed: np.ndarray,
    config: EstimatorConfig | None = None,
    differences: DeliberateDifferences | None = None,
) -> None:
    """Count the output, move the worst difference, and note values beyond the tolerance."""
    recorded = recorded.astype(np.float64)
    absolute = np.abs(recorded - computed)
    difference = np.where(np.isnan(absolute), np.inf, absolute / np.maximum(1.0, np.abs(recorded)))
    beyond = np.flatnonzero(difference > TOLERANCE)
    if config is not None and differences is not None:
        meant = [i for i in beyond if differences.explain(config, int(i), recorded[i])]
        difference[meant] = 0
        beyond = np.setdiff1d(beyond, meant)
    report.outputs += 1
    report.worst = max(report.worst, float(difference.max()))
    if beyond.size:
        i = beyond[np.argmax(difference[beyond])]
        report.problems.append(
            f"{name}: {beyond.size} of {recorded.size} values differ, most at step {i}: recorded "
            f"{recorded[i]:.7g}, computed {computed[i]:.7g}"
        )


class Level(NamedTuple):
    """One level of an estimator, [N] each: where may the recording hold a residue, and how large a one?"""

    advantage: np.ndarray
    on_mean: np.ndarray  # bool: advantage 0 in a group of three or more whose returns are not all 0
    ulp: np.ndarray  # last place of the group's largest value
    spread: np.ndarray  # standard deviation
    growth: np.ndarray  # standard deviation over residue, where all members have the same one
    normalized: bool  # divided by the standard deviation


class DeliberateDifferences:
    """Tells, of values that differ, which do so on purpose; counts them for the notes."""

    def __init__(self, signals: StepSignals):
        self._signals = signals
        self._cache: dict[tuple, Level] = {}
        self._singles = self._residues = 0

    def notes(self) -> list[str]:
        """One line for each kind that occurred."""
        notes = []
        if self._singles:
            notes.append(
                f"{self._singles} values differ on purpose: a prompt group with a single step or trajectory "
                "gives 0 here, the recording holds the raw score"
            )
        if self._residues:
            notes.append(
                f"{self._residues} values differ on purpose: a step on the mean of its group has 0 here, "
                "the recording a residue of float32 rounding"
            )
        return notes

    def explain(self, config: EstimatorConfig, i: int, recorded: float) -> bool:
        """Whether the value recorded for step i can come of one of the two deliberate differences."""
        if self._single(config, i):
            explained = bool(abs(recorded - self._signals.score[i]) <= TOLERANCE * max(1, abs(recorded)))
            self._singles += explained
            return explained
        explained = self._residue(config, i, recorded)
        self._residues += explained
        return explained

    def _single(self, config: EstimatorConfig, i: int) -> bool:
        if isinstance(config, HGPOConfig) and not config.episode_level:
            return False
        same = self._signals.prompt_group == self._signals.prompt_group[i]
        if isinstance(config, GRPOConfig) and config.over == "trajectories":
            return len(set(self._signals.trajectory[same])) == 1
        return bool(same.sum() == 1)

    def _residue(self, config: EstimatorConfig, i: int, recorded: float) -> bool:
        """Whether residues at some of the levels where step i is on the mean add up to the recorded value."""
        items = [(weight, self._level(config, row)) for weight, row in _items(config)]
        used = [(weight, float(level.advantage[i])) for weight, level in items if level.advantage[i] != 0]
        doubtful = [(weight, _residues(level, i)) for weight, level in items if level.on_mean[i]]
        if math.prod(len(candidates) + 1 for _, candidates in doubtful) > MOST_COMBINATIONS:
            return False
        mixed = isinstance(config, HGPOConfig)
        sums, weights = np.array([sum(w * v for w, v in used)]), np.array([sum(w for w, _ in used)])
        for weight, candidates in doubtful:  # each level takes no part, or takes part with one of its residues
            sums = np.add.outer(sums, weight * np.append(candidates, 0)).ravel()
            weights = np.add.outer(weights, np.append(np.full(len(candidates), weight), 0)).ravel()
        values = sums / np.where(weights > 0, weights, 1) if mixed else sums
        return bool((np.abs(recorded - values[:-1]) <= TOLERANCE * max(1, abs(recorded))).any())

    def _level(self, config: EstimatorConfig, row: int) -> Level:
        """One level of the estimator; row -1 is the episode's."""
        normalize = getattr(config, "normalize_std", False)
        key = (type(config), normalize, row)
        if key not in self._cache:
            signals = self._signals
            if row < 0:
                part, ids, values = GRPOConfig(normalize), signals.prompt_group, signals.score
            else:
                part, ids, values = HGPOConfig(0, 1.0, normalize), signals.group_ids[row], signals.step_return
                signals = signals._replace(group_ids=ids[None])
                if isinstance(config, GiGPOConfig):  # unbiased std, as GRPO, but over the state's group
                    part = GRPOConfig(normalize)
                    signals = signals._replace(prompt_group=ids, score=values)
            ddof = int(isinstance(part, GRPOConfig))
            self._cache[key] = _level(_run(part, signals), np.asarray(ids), np.asarray(values), ddof, normalize)
        return self._cache[key]


def _items(config: EstimatorConfig) -> list[tuple[float, int]]:
    """Weight and level of what an estimator adds up; level -1 is the episode's."""
    match config:
        case HGPOConfig():
            levels = [((k + 2.0) ** config.alpha, k) for k in range(config.context_length + 1)]
            return [(1.0, -1)] * config.episode_level + levels
        case GiGPOConfig():
            return [(1.0, -1), (config.omega, 0)]
        case GRPOConfig(over="steps"):
            return [(1.0, -1)]
    return []


def _level(advantage: np.ndarray, ids: np.ndarray, values: np.ndarray, ddof: int, normalize: bool) -> Level:
    slot = np.where(ids < 0, ids.max() + 1, ids)
    size = np.bincount(slot)
    largest = np.zeros(slot.max() + 1, np.float32)
    np.maximum.at(largest, slot, np.abs(values))
    mean = np.bincount(slot, values) / size.clip(1)
    variance = np.bincount(slot, (values - mean[slot]) ** 2) / (size - ddof).clip(1)
    # The mean of one and of two values is exact.
    on_mean = (advantage == 0) & (ids >= 0) & (size[slot] > 2) & (largest[slot] > 0)
    growth = np.sqrt(size / (size - ddof).clip(1))
    return Level(advantage, on_mean, np.spacing(largest)[slot], np.sqrt(variance)[slot], growth[slot], normalize)


def _residues(level: Level, i: int) -> np.ndarray:
    """What float32 can leave of step i, on its group's mean: up to two units in the last place of the largest value,
    divided by the group's standard deviation, which of equal values is 0 or comes of that residue itself."""
    if not level.normalized:
        return np.zeros(1)  # far below the tolerance: all that counts is that the level takes its weight
    distance = np.outer([-2, -1, -0.5, 0.5, 1, 2], level.ulp[i])
    own = [0, level.growth[i]] if level.spread[i] < 4 * level.ulp[i] else [0]
    return np.unique((distance / (level.spread[i] + np.abs(distance) * own + 1e-6)).round(6))
