"""What a chat server said, be it a completion or nonsense."""

from __future__ import annotations

import email.utils
import math
import time
from collections.abc import Mapping
from typing import Any

import pydantic

from experiments.journal import Answer

LONGEST_ANSWER = 50_000  # characters; what is longer is no reply
MOST_TOKENS = 2**31  # a larger count is nonsense

# Why an answer is bad; the first three may turn out better when asked for again.
NO_COMPLETION, NO_CHOICE, NO_TEXT = "not a chat completion", "no choice in it", "no text"
TOO_LONG, FILTERED, ONLY_THOUGHT = "too long", "refused by a content filter", "no text within the token limit"
ASKED_AGAIN = (NO_COMPLETION, NO_CHOICE, NO_TEXT)


class _Message(pydantic.BaseModel):
    content: str | None = None
    refusal: str | None = None


class _Choice(pydantic.BaseModel):
    message: _Message
    finish_reason: str | None = None


class _Completion(pydantic.BaseModel):
    choices: list[_Choice]
    usage: Any = None


def read_answer(body: bytes) -> Answer:
    """What a server said with status 200, be it a chat completion or anything else."""
    try:
        completion = _Completion.model_validate_json(body)
    except pydantic.ValidationError:
        return Answer("", bad=NO_COMPLETION)
    counts = completion.usage if isinstance(completion.usage, dict) else {}
    prompt_tokens, completion_tokens = (_count(counts.get(name)) for name in ("prompt_tokens", "completion_tokens"))

    def answer(text: str = "", bad: str = "", cut: bool = False) -> Answer:
        return Answer(text, cut, bad, prompt_tokens, completion_tokens)

    if not completion.choices:
        return answer(bad=NO_CHOICE)
    choice = completion.choices[0]
    text, cut = choice.message.content or "", choice.finish_reason == "length"
    if choice.finish_reason == "content_filter" or (choice.message.refusal and not text):
        return answer(bad=FILTERED)
    if not text:
        return answer(bad=ONLY_THOUGHT if cut else NO_TEXT, cut=cut)
    return answer(bad=TOO_LONG) if len(text) > LONGEST_ANSWER else answer(text, cut=cut)


def _count(value: Any) -> int:
    return value if type(value) is int and 0 <= value <= MOST_TOKENS else 0


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that a server asks to wait, from Retry-After (a number or a date) or retry-after-ms."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = headers.get(name)
        if value is None:
            continue
        try:
            seconds = float(value) * unit
        except ValueError:
            try:
                seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
            except ValueError:
                continue
        if not math.isnan(seconds):
            return max(seconds, 0.0)
    return None
