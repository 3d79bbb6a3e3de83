"""Environments spread over worker processes; to their user they are a `envs.core.TextVectorEnv`.

The workers are new interpreters that import this package and nothing of the parent's, and end with the parent however
it ends. The parent keeps what each running episode was told: where a worker dies or hangs, a new one is told the same
and goes on.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from envs.core import TextVectorEnv
from envs.worker import Call, Worker, WorkerLost, raised

ATTEMPTS = 3  # to get one answer


class ProcessVectorEnv(TextVectorEnv):
    """``num_envs`` environments in ``workers`` processes: autoreset disabled, finished ones idle.

    A call sends at most one message to each worker, and nothing about finished episodes. gymnasium's own code merges
    the answers, so that the results are those of one process. Exceptions of an environment are raised here as they
    are, its index and the worker's traceback among their notes; go on with a reset.

    A worker that dies, or does not answer in time, is replaced: the running episodes of its environments are replayed
    in a new one, which has to give the same observations. Environments therefore have to be deterministic given
    options, seed and replies. A line on stderr tells of it.

    Args:
        env_id: a gymnasium id.
        num_envs: how many, at least 1.
        workers: processes, at least 1; no more than ``num_envs`` are started. Neighbours share one.
        options: the environment's own arguments.
        timeout: seconds within which a worker has to answer a call.

    Raises:
        RuntimeError: at a call, if a worker dies or hangs three times over it, or a replay differs.
    """

    def __init__(
        self,
        env_id: str,
        num_envs: int,
        workers: int,
        options: Mapping[str, Any] | None = None,
        *,
        timeout: float = 60.0,
    ):
        shares = np.array_split(np.arange(num_envs), min(workers, num_envs))
        setup = gymnasium.spec(env_id), dict(options or {})
        self._workers = [Worker(i, share.tolist(), setup, timeout) for i, share in enumerate(shares)]
        self._end = weakref.finalize(self, _end_all, self._workers)
        self._told: list[list[Call]] = [[] for _ in range(num_envs)]  # since the reset; of running episodes
        self._seen: list[list[str]] = [[] for _ in range(num_envs)]  # the observations that came back
        try:
            for worker in self._workers:
                worker.start()
            attributes = [worker.ready() for worker in self._workers]
        except WorkerLost as loss:
            self._end()
            raise RuntimeError(f"environment worker {loss} while it started: look for what it printed") from None
        except BaseException:
            self._end()
            raise
        self._places = [_Place(attributes[0]) for _ in range(num_envs)]
        super().__init__([lambda place=place: place for place in self._places])

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return [worker.pid for worker in self._workers]

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        n = self.num_envs
        seeds = [None] * n if seed is None else [seed + i for i in range(n)] if isinstance(seed, int) else seed
        mask = (options or {}).get("reset_mask", np.ones(n, bool))
        if len(seeds) == n and isinstance(mask, np.ndarray) and (mask.shape, mask.dtype) == ((n,), np.bool_):
            passed = None if options is None else {k: v for k, v in options.items() if k != "reset_mask"}
            self._ask({i: ("reset", {"seed": seeds[i], "options": passed}) for i in np.flatnonzero(mask).tolist()})
        return super().reset(seed=seed, options=options)  # which refuses all others

    def step(self, actions: Any) -> Any:
        told = zip(actions, self._told, strict=True)
        self._ask({i: ("step", {"action": action}) for i, (action, running) in enumerate(told) if running})
        return super().step(actions)

    def close_extras(self, **kwargs: Any) -> None:
        self._end()
        super().close_extras(**kwargs)

    def __enter__(self) -> ProcessVectorEnv:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, calls: Mapping[int, Call]) -> None:
        """Makes one call to each of these environments and leaves the answers at their places."""
        if self.closed:
            raise gymnasium.error.ClosedEnvironmentError("these environments are closed: make new ones")
        shares = {worker: {i: [calls[i]] for i in worker.indices if i in calls} for worker in self._workers}
        waiting = {worker: share for worker, share in shares.items() if share}
        answers: dict[int, Any] = {}
        try:
            for worker, share in waiting.items():
                worker.send(share)
            while waiting:
                worker, share = next(iter(waiting.items()))
                answers |= self._answers(worker, share)
                del waiting[worker]
        except BaseException:
            for worker in waiting:  # of a late answer nobody would know which call it belongs to
                worker.end(0, "was ended, since a call was interrupted")
            raise
        for i, answer in answers.items():
            if not isinstance(answer, Exception):
                self._keep(i, calls[i], answer[0])
        for i, answer in answers.items():
            raised(answer, f"environment {i}")

    def _keep(self, i: int, call: Call, answer: tuple[Any, ...]) -> None:
        if call[0] == "reset":
            self._told[i], self._seen[i] = [], []
        self._told[i].append(call)
        self._seen[i].append(answer[0])
        self._places[i].answer = answer
        if call[0] == "step" and (answer[2] or answer[3]):
            self._told[i], self._seen[i] = [], []  # it idles from now on: there is nothing to redo

    def _answers(self, worker: Worker, share: Mapping[int, list[Call]]) -> dict[int, Any]:
        """What the worker says to what it was sent; one that is lost is replaced and asked again."""
        reason, starting = "", {i for i, calls in share.items() if calls[0][0] == "reset"}
        for attempt in range(ATTEMPTS):
            try:
                if attempt:
                    redo = [i for i in worker.indices if self._told[i] and i not in starting]
                    told = f"a new one replays {len(redo)} episode{'s' * (len(redo) != 1)}"
                    print(f"environment worker {reason}; {told}", file=sys.stderr, flush=True)
                    self._replace(worker, redo)
                    worker.send(share)
                return worker.receive()
            except WorkerLost as loss:
                reason = str(loss)
        raise RuntimeError(
            f"an environment worker was lost {ATTEMPTS} times over the same call, the last one {reason}; it holds "
            f"environments {worker.indices[0]} to {worker.indices[-1]}. Look for what they print, for the memory they "
            "take, or run them in this process (workers=0)"
        )

    def _replace(self, worker: Worker, redo: Sequence[int]) -> None:
        """Starts the worker again and brings the episodes of these environments to where they were."""
        worker.start()
        worker.ready()
        worker.send({i: self._told[i] for i in redo})
        for i, answers in worker.receive().items():
            raised(answers, f"the replay of environment {i}")
            pairs = zip(self._seen[i], (answer[0] for answer in answers), strict=True)
            for turn, (before, after) in enumerate(pairs):
                if before != after:
                    raise RuntimeError(
                        f"environment {i} cannot be replayed: told the same again, it shows {after!r} after step "
                        f"{turn}, where it showed {before!r}. Environments in workers have to be deterministic given "
                        "task, seed and replies"
                    )


class _Place(gymnasium.Env[str, str]):
    """Stands for an environment in gymnasium's code, with the answer that its worker has given."""

    answer: Any = None

    def __init__(self, attributes: Mapping[str, Any]):
        for name, value in attributes.items():
            setattr(self, name, value)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self.answer

    def step(self, action: str) -> Any:
        return self.answer


def _end_all(workers: Sequence[Worker]) -> None:
    for worker in workers:
        worker.send(None)
    deadline = time.monotonic() + 5
    for worker in workers:
        worker.end(max(deadline - time.monotonic(), 0))
