"""Slow oracles: plain loops in float64, written from the definitions; they share no code with the package."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

EPSILON = 1e-6
ROUNDING = 8 * 2.0**-23


def trajectories(trajectory: Any, step: Any = None) -> dict[Any, list[int]]:
    """The steps of each trajectory, in its own order."""
    steps = defaultdict(list)
    for i, label in enumerate(trajectory):
        steps[label].append(i)
    if step is not None:
        for members in steps.values():
            members.sort(key=lambda i: step[i])
    return dict(steps)


def returns(reward: Any, trajectory: Any, gamma: float, step: Any = None) -> np.ndarray:
    """R_t = r_t + gamma R_{t+1}, from the end of each trajectory."""
    result = np.zeros(len(reward))
    for steps in trajectories(trajectory, step).values():
        ahead = 0.0
        for i in reversed(steps):
            ahead = result[i] = float(reward[i]) + gamma * ahead
    return result


def scores(reward: Any, trajectory: Any, action_valid: Any, penalty: float) -> np.ndarray:
    """The trajectory's summed reward, minus the penalty if this step is invalid."""
    result = np.zeros(len(reward))
    for steps in trajectories(trajectory).values():
        for i in steps:
            result[i] = sum(float(reward[j]) for j in steps) - penalty * (not action_valid[i])
    return result


def contexts(state: Any, trajectory: Any, k: int, step: Any = None) -> list[tuple | None]:
    """C_k of each step: its last k + 1 states, or None with fewer than k predecessors."""
    result: list[tuple | None] = [None] * len(state)
    for steps in trajectories(trajectory, step).values():
        for t in range(k, len(steps)):
            result[steps[t]] = tuple(state[j] for j in steps[t - k : t + 1])
    return result


def groups(state: Any, prompt_group: Any, trajectory: Any, k: int | None, step: Any = None) -> list[list[int]]:
    """The groups of two or more at level k (None: the prompt groups), each a list of steps."""
    members = defaultdict(list)
    context = [()] * len(state) if k is None else contexts(state, trajectory, k, step)
    for i, key in enumerate(context):
        if key is not None:
            members[prompt_group[i], key].append(i)
    return [steps for steps in members.values() if len(steps) > 1]


def level_advantage(value: np.ndarray, group_list: list[list[int]], normalize: bool, ddof: int) -> np.ndarray:
    """(v - mean) / (std + 1e-6) within each group; zero in equal groups and, to rounding, on the mean."""
    result = np.zeros(len(value))
    for steps in group_list:
        own = value[steps].astype(np.float64)
        if own.max() == own.min():
            continue
        scale = own.std(ddof=ddof) + EPSILON if normalize else 1.0
        for i in steps:
            deviation = float(value[i]) - own.mean()
            if abs(deviation) > ROUNDING * abs(own).max():
                result[i] = deviation / scale
    return result


def hierarchy(
    state: Any,
    prompt_group: Any,
    trajectory: Any,
    step_return: np.ndarray,
    score: np.ndarray,
    *,
    context_length: int,
    alpha: float,
    normalize_std: bool,
    weight_offset: int = 1,
    episode_level: bool = False,
    skip_zero_levels: bool = True,
    root: str = "state",
    step: Any = None,
) -> np.ndarray:
    """HGPO, level by level and step by step."""
    items = []  # (weight, advantage [N], has a group [N])

    def add(weight: float, value: np.ndarray, group_list: list[list[int]], ddof: int) -> None:
        grouped = np.zeros(len(value), bool)
        grouped[[i for steps in group_list for i in steps]] = True
        items.append((weight, level_advantage(value, group_list, normalize_std, ddof), grouped))

    levels = [None] * (root == "prompt") + list(range(context_length + 1))
    for place, k in enumerate(levels):
        grouped = groups(state, prompt_group, trajectory, k, step)
        add(float(place + weight_offset) ** alpha, step_return, grouped, 0)
    if episode_level:
        add(1.0, score, groups(state, prompt_group, trajectory, None), 1)
    result = np.zeros(len(step_return))
    for i in range(len(result)):
        used = [(w, a[i]) for w, a, grouped in items if (a[i] != 0 if skip_zero_levels else grouped[i])]
        if used:
            result[i] = sum(w * a for w, a in used) / sum(w for w, _ in used)
    return result


def grpo(
    score: np.ndarray,
    prompt_group: Any,
    trajectory: Any,
    *,
    over: str,
    normalize_std: bool,
    leave_one_out: bool,
) -> np.ndarray:
    """Scores against those of the prompt group's steps, or of its trajectories' first steps."""
    result = np.zeros(len(score))
    first = {label: steps[0] for label, steps in trajectories(trajectory).items()}
    for group in set(prompt_group):
        steps = [i for i in range(len(score)) if prompt_group[i] == group]
        stand_in = {i: first[trajectory[i]] if over == "trajectories" else i for i in steps}
        counted = sorted(set(stand_in.values()))
        if len(counted) < 2:
            continue
        values = score[counted].astype(np.float64)
        scale = values.std(ddof=1) + EPSILON if normalize_std else 1.0
        for i in steps:
            others = [float(score[j]) for j in counted if not (leave_one_out and j == stand_in[i])]
            if values.max() == values.min() == score[i]:
                continue
            result[i] = (float(score[i]) - np.mean(others)) / scale
    return result


def gigpo(
    state: Any,
    prompt_group: Any,
    trajectory: Any,
    step_return: np.ndarray,
    score: np.ndarray,
    *,
    omega: float,
    normalize_std: bool,
) -> np.ndarray:
    """Episode advantage over all steps of the prompt group plus omega times that among steps in one state."""
    episode = groups(state, prompt_group, trajectory, None)
    same_state = groups(state, prompt_group, trajectory, 0)
    return level_advantage(score, episode, normalize_std, 1) + omega * level_advantage(
        step_return, same_state, normalize_std, 1
    )
