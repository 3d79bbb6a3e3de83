"""A process that holds some environments: how it is started and spoken to, and what it does.

Messages are pickles on a socket. A request holds a list of calls for each environment concerned; the answer holds, for
each of these, the pickled results or the exception that came instead. None ends the worker.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO

import gymnasium

START_SECONDS = 120.0  # for imports and for making the environments

Call = tuple[str, Mapping[str, Any]]  # a method and its arguments

_SETUP = -1  # what the first answer is under: environments are numbered from 0
_ATTRIBUTES = ("observation_space", "action_space", "metadata", "render_mode")


class WorkerLost(Exception):
    """A worker gives no answer any more. The text says which, and why."""


class Worker:
    """A process, started again as often as needed, and the socket to it."""

    def __init__(self, number: int, indices: Sequence[int], setup: tuple[Any, ...], timeout: float):
        self.number, self.indices, self._setup, self._timeout = number, list(indices), setup, timeout
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._stream: BinaryIO | None = None
        self._allowed, self._deadline = timeout, 0.0  # seconds to wait for the next answer, and until when
        self._ended = ""  # why, where this side has ended it

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    def start(self) -> None:
        self._socket, theirs = socket.socketpair()
        self._stream = self._socket.makefile("rb")
        self._ended = ""
        path = [str(entry) for entry in sys.path]
        code = f"import sys; sys.path[:] = {path}; from envs.worker import serve; serve({theirs.fileno()})"
        with theirs:
            # A process group of its own: Ctrl-C in a terminal is for the parent.
            self._process = subprocess.Popen(
                [sys.executable, "-c", code], stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], process_group=0
            )
        self.send((*self._setup, self.indices))
        self._allow(START_SECONDS)

    def ready(self) -> dict[str, Any]:
        """Waits until the environments are made; returns their common attributes."""
        return raised(self.receive()[_SETUP], f"worker {self.number}")

    def send(self, message: Any) -> None:
        """Where the worker is no more, `receive` will tell."""
        data = pickle.dumps(message)
        self._allow(self._timeout)
        if self._socket is None:
            return
        self._socket.settimeout(self._timeout)
        try:
            self._socket.sendall(data)
        except TimeoutError:
            self.end(0, f"took no message within {self._timeout:g} s and was killed")
        except OSError:
            pass  # it has hung up: `receive` reads what it still said, or raises WorkerLost

    def _allow(self, seconds: float) -> None:
        self._allowed, self._deadline = seconds, time.monotonic() + seconds

    def receive(self) -> dict[int, Any]:
        """The answers to what was sent, by environment.

        Raises:
            WorkerLost: the process has died, or was killed since it was too late.
        """
        who = f"{self.number} (process {self.pid})"
        if self._socket is None or self._stream is None:
            raise WorkerLost(f"{who} {self._ended}")
        # Later than the deadline an answer may lie here already.
        self._socket.settimeout(max(self._deadline - time.monotonic(), 1.0))
        try:
            answers = pickle.load(self._stream)
        except TimeoutError:
            self.end(0, f"gave no answer within {self._allowed:g} s and was killed")
        except (OSError, EOFError, pickle.UnpicklingError):
            self.end(5)
        else:
            return {i: pickle.loads(answer) for i, answer in answers.items()}
        raise WorkerLost(f"{who} {self._ended}")

    def end(self, patience: float, reason: str = "") -> None:
        """Waits so many seconds for the process to end by itself, then kills it. Without a reason its exit is one."""
        if self._process is None or self._socket is None or self._stream is None:
            return
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
        code = self._process.wait()
        self._stream.close()
        self._socket.close()
        self._socket = self._stream = None
        by = f"was killed by signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"ended with exit code {code}"
        self._ended = reason or by


def raised(answer: Any, where: str) -> Any:
    """The answer, or the exception that came instead of it."""
    if isinstance(answer, Exception):
        answer.add_note(f"({where})")
        raise answer
    return answer


def serve(descriptor: int) -> None:
    """The life of a worker: answers requests on this socket until it is told to end, or the parent has ended."""
    faulthandler.enable()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # batch systems send it to all; the parent decides when to end
    threading.Thread(target=_end_with_parent, args=(descriptor,), daemon=True).start()
    envs: dict[int, gymnasium.Env[str, str]] = {}
    with (
        socket.socket(fileno=descriptor) as connection,
        connection.makefile("rb") as stream,
        contextlib.suppress(EOFError, ConnectionError),  # the parent is gone
    ):
        spec, options, indices = pickle.load(stream)

        def make() -> dict[str, Any]:
            envs.update({i: gymnasium.make(spec, disable_env_checker=True, **options) for i in indices})
            return {name: getattr(envs[indices[0]], name) for name in _ATTRIBUTES}

        connection.sendall(pickle.dumps({_SETUP: _attempt(make)}))
        while (request := pickle.load(stream)) is not None:
            answers = {i: _attempt(lambda i=i, calls=calls: _call(envs[i], calls)) for i, calls in request.items()}
            connection.sendall(pickle.dumps(answers))
        for env in envs.values():
            env.close()


def _call(env: gymnasium.Env[str, str], calls: Sequence[Call]) -> list[Any]:
    return [getattr(env, method)(**arguments) for method, arguments in calls]


def _attempt(function: Callable[[], Any]) -> bytes:
    """The pickled result of ``function``, or the exception instead of it, the traceback among its notes."""
    try:
        return pickle.dumps(function())
    except Exception as error:
        note = f"in a worker process:\n{traceback.format_exc()}"
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            error = RuntimeError(f"{type(error).__name__}: {error}")
        error.add_note(note)
        return pickle.dumps(error)


def _end_with_parent(descriptor: int) -> None:
    """Ends the process when the other end is gone, whatever an environment is busy with."""
    poll = select.poll()
    poll.register(descriptor, 0)  # hang-up is always reported
    poll.poll()
    os._exit(1)
