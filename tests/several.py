"""Several processes of one program on the loopback interface, each with CPU devices of its own."""

import dataclasses
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@dataclasses.dataclass
class Processes:
    """What was started; leaving the block kills whatever still runs and drops what it said."""

    popen: list["subprocess.Popen[bytes]"]
    logs: list[Path]

    def wait(self, seconds: float, *which: int) -> list[int]:
        """Exit statuses of these, or of all, within so many seconds together."""
        deadline = time.monotonic() + seconds
        try:
            waited = [self.popen[i] for i in which] or self.popen
            return [process.wait(max(0.0, deadline - time.monotonic())) for process in waited]
        except subprocess.TimeoutExpired:
            raise AssertionError(f"not over after {seconds} s:\n{self.outputs()}") from None

    def outputs(self) -> str:
        return "\n".join(f"--- process {i}\n{log.read_text()}" for i, log in enumerate(self.logs))

    def said(self, process: int) -> str:
        """Its output with single spaces, so that a line broken by a narrow terminal is found."""
        return " ".join(self.logs[process].read_text().split())

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.popen:
            process.kill()
            process.wait()
        for log in self.logs:
            log.unlink()


def start_several(
    count: int, devices: int, *command: str, options: bool = True, cache: Path | None = None
) -> Processes:
    """``python *command --processes.*`` ``count`` times; with ``options`` off the program gets address, count and id.

    What is compiled goes into ``cache``, for programs that start again, and never into the one that all tests share:
    a process that is stopped for a while may hold its lock. It is hardly optimized: it runs once.
    """
    address = f"127.0.0.1:{free_port()}"
    env = {name: value for name, value in os.environ.items() if "_CACHE_" not in name} | {
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": str(devices),
        "JAX_NUMPY_RANK_PROMOTION": "raise",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "PYTHONPATH": str(ROOT),
    }
    if cache is not None:
        everything = {"MIN_COMPILE_TIME_SECS": "0", "MIN_ENTRY_SIZE_BYTES": "0"}
        env |= {f"JAX_PERSISTENT_CACHE_{name}": value for name, value in everything.items()}
        env["JAX_COMPILATION_CACHE_DIR"] = str(cache)
    logs, popen = [], []
    for process in range(count):
        own: Sequence[str] = (address, str(count), str(process))
        if options:
            own = [x for k, v in zip(("coordinator", "count", "id"), own, strict=True) for x in (f"--processes.{k}", v)]
        log = Path(tempfile.mkstemp(suffix=".log")[1])
        with log.open("wb") as file:
            run = [sys.executable, "-u", *command, *own]
            popen.append(subprocess.Popen(run, cwd=ROOT, env=env, stdout=file, stderr=subprocess.STDOUT))
        logs.append(log)
    return Processes(popen, logs)
