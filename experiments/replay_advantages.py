"""Replay recorded batches (.npz) through the estimators: the released code's inputs, returns and outputs.

Two differences are deliberate, and are told apart instead of failing. A prompt group with a single step (or
trajectory) gives 0 here, the raw score there. And where all returns of a group are equal, or a step sits on
its group's mean, the advantage is exactly 0 here, while float32 rounding there can leave a residue of a few
units in the last place, which a standard deviation of the same residue blows up to anything within [-1, 1]
and which makes the level take its weight.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import warnings
import zipfile
import zlib
from pathlib import Path

import numpy as np

from hgpo_jax.config import EstimatorConfig, GiGPOConfig, GRPOConfig, HGPOConfig
from hgpo_jax.estimators.advantages import make_estimator, size_bucket, step_signals
from hgpo_jax.estimators.returns import discounted_returns
from hgpo_jax.types import Array, StepSignals

TOLERANCE = 2e-5  # absolute, or relative to the recorded value
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
        except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            reports[-1].problems.append(f"damaged: {error}")
            recordings.append(None)
    # One padded size for all the files: each kind of output is compiled once.
    size = size_bucket(max((len(r["state"]) for r in recordings if r), default=1))
    for report, recording in zip(reports, recordings, strict=True):
        if recording:
            _replay(report, recording, size)
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
    if not configs:
        report.problems.append("holds no estimator's output")
    levels = max([c.context_length for c in configs.values() if isinstance(c, HGPOConfig)], default=0)
    inputs = [recording[name] for name in ("state", "group", "trajectory", "reward", "action_valid")]
    gamma = float(recording["gamma"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # single rollouts: the notes tell where they matter
        try:
            signals = step_signals(
                *inputs, estimator=HGPOConfig(levels), gamma=gamma, invalid_action_penalty=PENALTY, size=size
            )
        except ValueError as error:
            report.problems.append(f"damaged: {error}")
            return
    report.steps = steps = len(recording["reward"])
    returns = discounted_returns(recording["reward"], recording["trajectory"], gamma)
    _compare(report, "discounted_return", recording["discounted_return"], returns)
    _compare(report, "step_return", recording["step_return"], np.asarray(signals.step_return)[:steps])
    differences = DeliberateDifferences(signals, steps)
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


class DeliberateDifferences:
    """Tells, of values that differ, which do so on purpose; counts them for the notes."""

    def __init__(self, signals: StepSignals, steps: int):
        self._signals, self._steps = signals, steps
        self._cache: dict[tuple, tuple[np.ndarray, np.ndarray]] = {}
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
        """Try every choice of the levels at which step i is on the mean: did their residues take part?"""
        items = [(weight, *self._level(config, row)) for weight, row in _items(config)]
        used = [(weight, float(value[i])) for weight, value, _ in items if value[i] != 0]
        doubtful = [(weight, float(reach[i])) for weight, _, reach in items if reach[i] > 0]
        mixed = isinstance(config, HGPOConfig)
        for count in range(1, len(doubtful) + 1):
            for chosen in itertools.combinations(doubtful, count):
                total = sum(weight for weight, _ in (*used, *chosen)) if mixed else 1.0
                middle = sum(weight * value for weight, value in used) / total
                reach = sum(weight * bound for weight, bound in chosen) / total
                if abs(recorded - middle) <= reach + TOLERANCE * max(1, abs(recorded)):
                    return True
        return False

    def _level(self, config: EstimatorConfig, row: int) -> tuple[np.ndarray, np.ndarray]:
        """Advantage [N] at one level (-1: the episode's), and how far a residue may reach where it is 0."""
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
            value = _run(part, signals)
            residue = _largest(ids, values) * 2.0**-20
            reach = np.where((value == 0) & (residue > 0), 1.0 if normalize else residue, 0)
            self._cache[key] = value, reach
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


def _largest(ids: Array, values: Array) -> np.ndarray:
    """Largest absolute value of each step's group [N]; 0 in groups of two, whose mean is exact."""
    slot = np.where(np.asarray(ids) < 0, ids.max() + 1, ids)
    largest = np.zeros(slot.max() + 1)
    np.maximum.at(largest, slot, np.abs(values))
    size = np.bincount(slot)
    return np.where((ids >= 0) & (size[slot] > 2), largest[slot], 0)
