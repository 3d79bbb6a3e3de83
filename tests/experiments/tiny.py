"""A run small enough to repeat in a test, and how to start it in a process of its own."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]

SETTINGS = [
    *("--model.hidden-size", "16", "--model.intermediate-size", "32", "--model.num-layers", "1"),
    *("--model.num-heads", "2", "--model.num-kv-heads", "1", "--model.head-dim", "8"),
    *("--rollout.tasks", "2", "--rollout.group-size", "4", "--rollout.max-steps", "4"),
    *("--learner.minibatch-steps", "16", "--evaluation.every", "2", "--evaluation.tasks", "4"),
    *("--checkpoint-every", "1", "--warm-start.batches", "1"),
]


def start(*args: str) -> "subprocess.Popen[str]":
    """``python -m experiments.train`` with these arguments, output to be read from ``communicate``."""
    command = [sys.executable, "-W", "error::UserWarning", "-m", "experiments.train", *args]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def rows(directory: Path) -> list[dict[str, Any]]:
    """The whole lines of a run's metrics.jsonl."""
    path = directory / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def wait_for(condition: Callable[[], bool], process: "subprocess.Popen[str]", seconds: float = 240) -> None:
    """Until it holds; the process must be alive meanwhile."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, "the run takes too long"
        time.sleep(0.02)
