"""How a process ends that waits in vain for another one."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import queue
import sys
import threading
import time
from collections.abc import Iterator
from typing import NoReturn

import jax

LOST = 3  # the exit status of a process that gives up


class Watchdog:
    """Ends this process when it takes too long over one part of an iteration, for it may wait for ever.

    A process that dies is noticed by its heartbeat. One that lives but hangs, in an environment say, is not: the
    others wait for it in their next common computation. ``feed`` names what is begun; when ``seconds`` pass without
    another, a line that says so and the stacks of all threads are printed, and the process exits with status 3. As
    a context manager it ends with the block.

    Args:
      seconds: that a part may take.
      process: the number of this process; None in a run of one, which nobody waits for: nothing is watched.
    """

    def __init__(self, seconds: float, process: int | None):
        self.seconds, self.process = seconds, process
        self.part = "start"
        self._parts: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def feed(self, part: str, iteration: int | None = None) -> None:
        """``part`` of ``iteration`` begins now."""
        self.part = part if iteration is None else f"{part} of iteration {iteration}"
        self._parts.put(self.part)

    def __enter__(self) -> Watchdog:
        if self.process is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._parts.put(None)
        if self.process is not None:
            self._thread.join()

    @contextlib.contextmanager
    def failing_together(self) -> Iterator[None]:
        """Ends this process, with status 3, when a common computation fails: most likely another one is gone."""
        try:
            yield
        except jax.errors.JaxRuntimeError as error:
            if self.process is None:
                raise
            _complain(
                f"process {self.process} failed in {self.part}, most likely since another process has ended: see what "
                f"that one says. Start all again with --resume. Here: {str(error).splitlines()[0]}"
            )
            leave(LOST, self.process)

    def _watch(self) -> None:
        try:
            while self._parts.get(timeout=self.seconds) is not None:
                pass
        except queue.Empty:
            _complain(
                f"process {self.process} made no progress for {self.seconds:g} s in {self.part}: it hangs, or waits "
                "for a process that does. All end; start them again with --resume, or raise --processes.deadline"
            )
            faulthandler.dump_traceback()
            leave(LOST, self.process)


def leave(status: int, process: int | None) -> NoReturn:
    """Ends this process; one of several at once, since a usual exit waits for the others and ends in an abort."""
    if process is None:
        sys.exit(status)
    sys.stdout.flush()
    sys.stderr.flush()
    if process == 0:  # the others lose their connection with it: let them say first why they end
        time.sleep(2)
    os._exit(status)


def _complain(message: str) -> None:
    print(f"error: {message}", file=sys.stderr, flush=True)
