"""What an evaluation found: the record on disk, and the tables on the terminal."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from rich import box
from rich.table import Table

from envs.core import Panel
from hgpo_jax.rollout.collector import Outcome

# Of the published tables; other types have their own names.
SHORT_NAMES = {
    "pick_and_place_simple": "Pick",
    "look_at_obj_in_light": "Look",
    "pick_clean_then_place_in_recep": "Clean",
    "pick_heat_then_place_in_recep": "Heat",
    "pick_cool_then_place_in_recep": "Cool",
    "pick_two_obj_and_place": "Pick2",
}
# Metric, heading, what its values are multiplied with.
FURTHER = (
    ("episode_return", "return", 1),
    ("episode_length", "steps", 1),
    ("valid_action_share", "valid (%)", 100),
    ("response_length", "reply (tokens)", 1),
    ("response_cut_share", "cut (%)", 100),
    ("endpoint/bad_answers", "bad answers", 1),
)


class Pass(NamedTuple):
    """One pass over a panel."""

    panel: Panel
    seed: int
    metrics: dict[str, float]
    outcomes: list[Outcome]


def statistics(passes: Sequence[Pass]) -> tuple[dict[str, float], dict[str, float]]:
    """Mean and (population) standard deviation over the passes of each metric that all of them have."""
    names = [name for name in passes[0].metrics if all(name in one.metrics for one in passes)]
    values = {name: [one.metrics[name] for one in passes] for name in names}
    mean = {name: float(np.mean(column)) for name, column in values.items()}
    return mean, {name: float(np.std(column)) for name, column in values.items()}


def by_split(passes: Sequence[Pass]) -> dict[str, list[Pass]]:
    """The passes of each split, in the order in which they came."""
    splits: dict[str, list[Pass]] = {}
    for one in passes:
        splits.setdefault(one.panel.split, []).append(one)
    return splits


def splits_to_json(passes: Sequence[Pass]) -> dict[str, Any]:
    """All that was measured: of each split its panel, every pass, and mean and deviation over the seeds."""
    record = {}
    for split, of_split in by_split(passes).items():
        panel = of_split[0].panel
        mean, std = statistics(of_split)
        record[split] = {
            "panel": {"name": str(panel), **dataclasses.asdict(panel), "tasks": list(panel.tasks)},
            "mean": mean,
            "std": std,
            "passes": [
                {"seed": one.seed, "metrics": one.metrics, "outcomes": [outcome._asdict() for outcome in one.outcomes]}
                for one in of_split
            ],
        }
    return record


def success_table(passes: Sequence[Pass], task_types: Sequence[str]) -> Table:
    """In per cent: a row for each split, a column for each type of task, and all of them together.

    Where the environment scores its episodes, one more with the mean score, 0 to 100.
    """
    names = {f"success/{name}": SHORT_NAMES.get(name, name) for name in task_types} | {"success": "All"}
    names |= {"score": "Score"} if "score" in statistics(passes)[0] else {}
    return _table(passes, [(metric, name, 100) for metric, name in names.items()])


def further_table(passes: Sequence[Pass]) -> Table:
    """The other metrics, as far as the policy has them."""
    known = statistics(passes)[0]
    return _table(passes, [column for column in FURTHER if column[0] in known])


def describe_endpoint(summary: Mapping[str, Any]) -> str:
    """What `Endpoint.summary` gives, in a sentence."""
    answers, bad = (summary[f"endpoint/{name}"] for name in ("answers", "bad_answers"))
    reasons = ", ".join(f"{count} {reason}" for reason, count in summary["bad"].items())
    prompt, completion = (summary[f"endpoint/{name}_tokens"] for name in ("prompt", "completion"))
    return (
        f"endpoint: {answers} answers, {bad} of them bad{f' ({reasons})' if reasons else ''}, {prompt:,} tokens of "
        f"prompts and {completion:,} of replies; {summary['requests']} requests in this process, "
        f"{summary['retries']} of them further tries"
    )


def _table(passes: Sequence[Pass], columns: Sequence[tuple[str, str, float]]) -> Table:
    # Narrow enough for six types of task on 80 columns.
    table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False)
    table.add_column("split")
    for _, heading, _ in columns:
        table.add_column(heading, justify="right", overflow="fold")
    for split, of_split in by_split(passes).items():
        mean, std = statistics(of_split)
        cells = [_cell(mean, std, metric, scale, len(of_split)) for metric, _, scale in columns]
        table.add_row(split, *cells)
    return table


def _cell(mean: Mapping[str, float], std: Mapping[str, float], metric: str, scale: float, seeds: int) -> str:
    if metric not in mean:
        return "-"
    deviation = f"±{scale * std[metric]:.1f}" if seeds > 1 else ""
    return f"{scale * mean[metric]:.1f}{deviation}"
