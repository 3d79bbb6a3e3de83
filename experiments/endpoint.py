"""Any server that speaks OpenAI's chat completions, as a policy: vLLM, SGLang, llama.cpp, Ollama, or a paid service.

The ``openai`` package sends a request once (its own retries are off); all tries, waits and limits are decided here:

- 408, 409, 429, 5xx, timeouts and broken connections are tried again after an exponentially growing, jittered wait, or
  after what Retry-After asks for. If it still fails the evaluation ends with one line; the answers so far are kept.
- An answer of which nothing can be made is asked for again where that may help, then stands as an empty reply, which
  the environment takes for an invalid action. They are counted: ``endpoint/bad_answers``.
- A refused key, an unknown model and the like end the evaluation at once.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import random
import threading
import urllib.parse
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Literal

import numpy as np

from envs.core import Panel
from experiments.chat_answers import ASKED_AGAIN, FILTERED, read_answer, retry_after
from experiments.console import CONSOLE
from experiments.journal import Answer, Journal, Key
from hgpo_jax.config import SamplingConfig
from hgpo_jax.policy.tokenization import AnyTokenizer
from hgpo_jax.rollout.collector import Act, Reply, Request

KEY_VARIABLE = "OPENAI_API_KEY"
LONGEST_RETRY_AFTER = 600.0  # seconds; who asks for more is asked again in another run


@dataclasses.dataclass(frozen=True)
class EndpointConfig:
    """Of the policy "endpoint". The key is read from the variable OPENAI_API_KEY; a server may do without."""

    base_url: str = ""  # such as http://localhost:8000/v1
    model: str = ""  # as the server calls it
    concurrency: int = 8  # requests at a time, at most
    timeout: float = 120.0  # seconds that a server may be silent
    max_retries: int = 6  # of a request that fails, or whose answer is of no use
    first_wait: float = 1.0  # seconds before the second try; each further wait is twice as long
    longest_wait: float = 60.0  # seconds
    budget_calls: int = 0  # stop when so many calls are answered, those of earlier runs in --output included; 0: never
    # How the limit on a reply is sent: OpenAI's newer models want the second.
    limit_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    send_seed: bool = False  # with each request, one made of the evaluation's seed, the episode and the turn

    def check(self) -> None:
        """Raises a ValueError for what is missing or not possible."""
        if urllib.parse.urlsplit(self.base_url).scheme not in ("http", "https") or not self.model:
            raise ValueError("the policy endpoint needs --base-url, such as http://localhost:8000/v1, and --model")
        for name, least in {"concurrency": 1, "max_retries": 0, "first_wait": 0, "budget_calls": 0}.items():
            if getattr(self, name) < least:
                raise ValueError(f"--{name.replace('_', '-')} is {getattr(self, name)}, but has to be at least {least}")
        if self.timeout <= 0:
            raise ValueError(f"--timeout is {self.timeout} seconds, but has to be above 0")


class EndpointError(ValueError):
    """The server cannot or will not answer."""


class BudgetSpent(Exception):
    """As many calls are answered as ``budget_calls`` allows."""


class _Failure(Exception):
    """Of one try; another may succeed."""

    def __init__(self, reason: str, retry_after: float | None = None):
        super().__init__(reason)
        self.retry_after = retry_after


class Endpoint:
    """Asks a chat server, several requests at a time, and keeps each answer in a journal; none is asked for twice.

    Use as a context manager, or call ``close``.

    Args:
      config: of the server.
      sampling: how replies are drawn.
      limit: of a reply, in the model's tokens.
      tokenizer: turns the texts into what `Act` returns.
      path: of the journal.

    Raises:
      ValueError: no address or model, the package ``openai`` is missing, or the journal is of other settings.
    """

    def __init__(
        self, config: EndpointConfig, sampling: SamplingConfig, limit: int, tokenizer: AnyTokenizer, path: Path
    ):
        config.check()
        self.config, self.tokenizer = config, tokenizer
        self._secret = os.environ.get(KEY_VARIABLE, "").strip()
        self._openai = _import_openai()
        path.parent.mkdir(parents=True, exist_ok=True)
        settings = {"model": config.model, **dataclasses.asdict(sampling), "limit": limit, "seed": config.send_seed}
        self.journal = Journal(path, settings)
        self._client = self._openai.OpenAI(
            api_key=self._secret or "none", base_url=config.base_url, timeout=config.timeout, max_retries=0
        )
        self._create = self._client.chat.completions.with_raw_response.create
        self._settings: dict[str, Any] = {
            "model": config.model,
            "temperature": sampling.temperature,
            config.limit_field: limit,
            **({"top_p": sampling.top_p} if sampling.top_p != 1.0 else {}),  # some servers take only one of the two
            **({"extra_body": {"top_k": sampling.top_k}} if sampling.top_k else {}),
        }
        self._pool = ThreadPoolExecutor(config.concurrency, "endpoint")
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._used: dict[tuple[Panel, int], list[Answer]] = {}  # of each pass
        self._under_way = 0
        self._answered = sum(answer.calls for _, answer in self.journal.items())
        self.requests = self.retries = 0  # of this process

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Waits for the requests under way, and keeps their answers."""
        self._stopping.set()
        self._pool.shutdown()
        self._client.close()
        self.journal.close()

    def act(self, panel: Panel, seed: int) -> Act:
        """The policy for one pass over a panel. It may raise `EndpointError` or `BudgetSpent`."""
        used = self._used[panel, seed] = []

        def act(_params: object, requests: Sequence[Request], _: SamplingConfig) -> list[Reply]:
            keys = [_key(panel, seed, request) for request in requests]
            asked = [(key, request) for key, request in zip(keys, requests, strict=True) if key not in self.journal]
            self._collect([self._pool.submit(self._answer, key, request) for key, request in asked])
            answers = [self.journal[key] for key in keys]
            used.extend(answers)
            return [self._reply(answer) for answer in answers]

        return act

    def metrics(self, panel: Panel, seed: int) -> dict[str, float]:
        """Answers and tokens of the last pass, whichever process asked for them."""
        return _totals(self._used[panel, seed])

    def summary(self) -> dict[str, Any]:
        """Answers and tokens in the journal, what was bad among them, and the requests of this process."""
        answers = [answer for _, answer in self.journal.items()]
        bad = Counter(answer.bad for answer in answers if answer.bad)
        own = {"requests": self.requests, "retries": self.retries, "openai": self._openai.__version__}
        return {**_totals(answers), "endpoint/calls": self._answered, "bad": dict(bad), **own}

    def _reply(self, answer: Answer) -> Reply:
        tokens = np.array([*self.tokenizer.encode(answer.text), self.tokenizer.eos_ids[0]], np.int32)
        return Reply(tokens, np.zeros(len(tokens), np.float32), answer.cut)

    def _collect(self, futures: Sequence[Future[None]]) -> None:
        """Waits for all; the first error stops those not yet sent, the others end as they end."""
        try:
            wait(futures)
        except BaseException:  # Ctrl-C
            self._stopping.set()
            wait(futures)
            raise
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:  # _Stopped and BudgetSpent are what the others make of the end that one has met
            raise min(errors, key=lambda error: (isinstance(error, _Stopped), isinstance(error, BudgetSpent)))

    def _answer(self, key: Key, request: Request) -> None:
        try:
            self.journal.add(key, self._ask(request))
        except (BudgetSpent, _Stopped):
            raise
        except BaseException:
            self._stopping.set()
            raise

    def _ask(self, request: Request) -> Answer:
        """Tries until there is an answer to keep, or no hope."""
        calls = prompt_tokens = completion_tokens = failures = 0
        while True:
            try:
                answer = self._call(request)
            except _Failure as failure:
                if failures == self.config.max_retries:
                    raise EndpointError(
                        f"{self.config.base_url} failed {failures + 1} times on one request, at last with: {failure}. "
                        "The answers so far are kept: the same command goes on from there"
                    ) from failure
                self._rest(failures, str(failure), failure.retry_after)
            else:
                calls += 1
                prompt_tokens += answer.prompt_tokens
                completion_tokens += answer.completion_tokens
                if answer.bad not in ASKED_AGAIN or failures == self.config.max_retries:
                    return answer._replace(
                        calls=calls, prompt_tokens=prompt_tokens, completion_tokens=completion_tokens
                    )
                self._rest(failures, answer.bad, None)
            failures += 1

    def _call(self, request: Request) -> Answer:
        """One request."""
        extra: dict[str, Any] = {"seed": int(request.key[0]) >> 1} if self.config.send_seed else {}
        answered = False
        self._begin()
        try:
            response = self._create(messages=[{"role": "user", "content": request.text}], **self._settings, **extra)
            answered = True
            return read_answer(response.content)
        except self._openai.APIStatusError as error:
            if error.code == "content_filter":
                answered = True
                return Answer("", bad=FILTERED)
            raise self._judged(error) from error
        except self._openai.APIConnectionError as error:  # timeouts too
            raise _Failure(self._shown(f"{error.message} {error.__cause__ or ''}")) from error
        finally:
            with self._lock:
                self._under_way -= 1
                self._answered += answered

    def _begin(self) -> None:
        if self._stopping.is_set():
            raise _Stopped
        with self._lock:
            budget = self.config.budget_calls
            if budget and self._answered + self._under_way >= budget:
                raise BudgetSpent
            self._under_way += 1
            self.requests += 1

    def _rest(self, failures: int, reason: str, retry_after: float | None) -> None:
        """Waits before the next try."""
        with self._lock:
            self.retries += 1
            first = self.retries == 1
        if first:
            CONSOLE.print(f"the endpoint: {reason}; trying again", soft_wrap=True, highlight=False, markup=False)
        jitter = random.random()
        seconds = min(self.config.first_wait * 2.0 ** min(failures, 60), self.config.longest_wait) * (1 + jitter) / 2
        if retry_after is not None:
            seconds = retry_after + self.config.first_wait * jitter
        if self._stopping.wait(seconds):
            raise _Stopped

    def _judged(self, error: Any) -> Exception:
        """What an HTTP status that is no success means for the evaluation."""
        status, message = error.status_code, error.body.get("message") if isinstance(error.body, dict) else None
        said = self._shown(f"{status}: {message or error.message}")
        if status in (401, 403):
            key = "the key in it is refused" if self._secret else "it is not set"
            return EndpointError(f"{self.config.base_url} wants another key ({said}): see {KEY_VARIABLE}, {key}")
        if status == 404:
            return EndpointError(
                f"{self.config.base_url} does not know the model {self.config.model!r}, or nothing of this kind "
                f"({said}): check --model, and --base-url, which mostly ends in /v1"
            )
        if error.code == "insufficient_quota" or (status < 500 and status not in (408, 409, 429)):
            return EndpointError(f"{self.config.base_url} refuses the request: {said}")
        seconds = retry_after(error.response.headers)
        if seconds is not None and seconds > LONGEST_RETRY_AFTER:
            return EndpointError(
                f"{self.config.base_url} asks to come back in {seconds:.0f} s ({said}): the same command goes on then"
            )
        return _Failure(said, seconds)

    def _shown(self, message: str) -> str:
        """A server's words on one line, and nothing of the key."""
        line = " ".join(message.split())
        return (line.replace(self._secret, "***") if self._secret else line)[:300]


class _Stopped(Exception):
    """Another request has ended the evaluation."""


def _totals(answers: Sequence[Answer]) -> dict[str, float]:
    return {
        "endpoint/answers": len(answers),
        "endpoint/bad_answers": sum(bool(answer.bad) for answer in answers),
        "endpoint/prompt_tokens": sum(answer.prompt_tokens for answer in answers),
        "endpoint/completion_tokens": sum(answer.completion_tokens for answer in answers),
    }


def _key(panel: Panel, seed: int, request: Request) -> Key:
    prompt = hashlib.sha256(request.text.encode()).hexdigest()[:16]
    return Key(panel.split, panel.hash, seed, request.episode, request.turn, prompt)


def _import_openai() -> Any:
    try:
        import openai
    except ImportError as error:
        raise ValueError("the policy endpoint needs the extra: pip install 'hgpo_jax[openai]'") from error
    return openai
