"""An environment that does to its process what it is told; for workers to import."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
from gymnasium.spaces import Text


class Troubled(gymnasium.Env[str, str]):
    """Counts the replies since the reset. "once PATH WHAT" does the rest only if there is no such file yet."""

    splits: ClassVar = ("train",)
    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012

    def __init__(self, fault: str = "", render_mode: str | None = None):
        self.render_mode = render_mode
        self.observation_space = Text(64)
        self.action_space = Text(512, min_length=0)
        self.count = 0
        self._obey(fault)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.count = 0
        self._obey((options or {}).get("fault", ""))
        return f"draw {self.np_random.integers(1000)}", {"pid": os.getpid(), "jax": "jax" in sys.modules}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.count += 1
        if action.startswith("once "):
            _, path, action = action.split(" ", 2)
            action = "" if Path(path).exists() else action
            Path(path).touch()
        self._obey(action)
        seen = f"{self.count} {time.time_ns() if action == 'clock' else ''}"
        odd = {"odd": lambda: None} if action == "odd" else {}
        return seen, float(self.count), action == "end", action == "cut", odd | {"state": {"count": (self.count, None)}}

    def _obey(self, what: str) -> None:
        if what == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "exit":
            os._exit(3)
        if what == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if what == "spin":
            while True:
                pass
        if what == "fail":
            raise ValueError("no such door")
        if what == "fail oddly":
            raise Odd("one", "two")


class Odd(Exception):
    """Cannot be unpickled."""

    def __init__(self, one: str, two: str):
        super().__init__(one)
