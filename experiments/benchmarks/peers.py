"""What the benchmarks share: the model of the peers' scripts, how such a script is run, and how a time is taken."""

from __future__ import annotations

import json
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from hgpo_jax.config import ModelConfig

MODEL = ModelConfig(
    vocab_size=4096,
    hidden_size=256,
    intermediate_size=1024,
    num_layers=4,
    num_heads=4,
    num_kv_heads=2,
    head_dim=64,
)


def run_script(python: Path, folder: Path, *arguments: str) -> dict[str, Any]:
    """The JSON object that a peer's script prints last.

    Raises:
      ValueError: the interpreter is missing, or the script failed.
    """
    command = [str(python), *arguments]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise ValueError(f"{error.filename} is missing: name the peer's Python and the folder of its script") from error
    if done.returncode:
        raise ValueError(f"{' '.join(command)} in {folder} failed: {done.stderr.strip()[-500:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def median_seconds(function: Callable[[], Any], repeats: int) -> float:
    """Median over the repeats, after one to warm up."""
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        jax.block_until_ready(function())
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])
