"""Requests to a chat server: how many, how often, and what becomes of what it says."""

import dataclasses
import email.utils
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chat_server import ChatServer, Said, completion, error

from envs.core import Panel
from experiments.chat_answers import LONGEST_ANSWER, read_answer, retry_after
from experiments.endpoint import BudgetSpent, Endpoint, EndpointConfig, EndpointError
from experiments.journal import Answer, Journal, Key
from hgpo_jax.config import SamplingConfig
from hgpo_jax.policy.tokenization import ByteTokenizer
from hgpo_jax.rollout.collector import Reply, Request

PANEL = Panel("test", 0, (0, 1), "abc")
SAMPLING = SamplingConfig(temperature=0.4)
TOKENIZER = ByteTokenizer()
QUICK = EndpointConfig(model="m", first_wait=0.01, timeout=5)
Open = Callable[..., Endpoint]


def ask(endpoint: Endpoint, prompts: list[str], seed: int = 1, turn: int = 0) -> list[str]:
    key = np.array([7, 8], np.uint32)
    requests = [Request(np.zeros(1), key, text, episode=i, turn=turn) for i, text in enumerate(prompts)]
    return [TOKENIZER.decode(reply.tokens) for reply in replies(endpoint, requests, seed)]


def replies(endpoint: Endpoint, requests: list[Request], seed: int = 1) -> list[Reply]:
    return endpoint.act(PANEL, seed)({}, requests, SAMPLING)


def echo(prompt: str, before: int) -> Said:
    return completion(f"<{prompt}>")


def prompts(count: int) -> list[str]:
    return [f"prompt {i}" for i in range(count)]


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """Opens endpoints on a server, one after the other on one journal."""
    last: list[Endpoint] = []

    def open_(server: ChatServer, sampling: SamplingConfig = SAMPLING, **settings: Any) -> Endpoint:
        while last:
            last.pop().close()
        config = dataclasses.replace(QUICK, base_url=server.url, **settings)
        last.append(Endpoint(config, sampling, 64, TOKENIZER, tmp_path / "answers.jsonl"))
        return last[0]

    yield open_
    for endpoint in last:
        endpoint.close()


def test_what_is_sent_and_what_comes_back(opened: Open) -> None:
    with ChatServer(lambda prompt, _: completion("go up ❄", finish_reason="length")) as server:
        endpoint = opened(server)
        reply = replies(endpoint, [Request(np.zeros(1), np.zeros(2, np.uint32), "where?")])[0]
    assert server.requests == [
        {
            "messages": [{"role": "user", "content": "where?"}],
            "model": "m",
            "temperature": 0.4,
            "max_tokens": 64,
        }
    ]
    assert TOKENIZER.decode(reply.tokens) == "go up ❄"
    assert reply.cut
    assert reply.logprobs.shape == reply.tokens.shape
    assert endpoint.metrics(PANEL, 1) == {
        "endpoint/answers": 1,
        "endpoint/bad_answers": 0,
        "endpoint/prompt_tokens": 10,
        "endpoint/completion_tokens": 3,
    }


def test_other_ways_to_ask(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    with ChatServer(echo) as server:
        endpoint = opened(server, SamplingConfig(0.0, 0.9, 5), limit_field="max_completion_tokens", send_seed=True)
        ask(endpoint, ["a"])
    sent = server.requests[0]
    assert {name: sent[name] for name in ("temperature", "top_p", "top_k", "max_completion_tokens", "seed")} == {
        "temperature": 0.0,
        "top_p": 0.9,
        "top_k": 5,
        "max_completion_tokens": 64,
        "seed": 3,  # 7, the first word of the request's key, halved
    }
    assert server.headers[0]["authorization"] == "Bearer sk-secret"


def test_requests_run_side_by_side_and_keep_their_order(opened: Open) -> None:
    with ChatServer(
        lambda prompt, _: completion(prompt)._replace(delay=0.15 if prompt[-1] in "02468" else 0.1)
    ) as server:
        start = time.perf_counter()
        assert ask(opened(server, concurrency=4), prompts(16)) == prompts(16)
        seconds = time.perf_counter() - start
    assert server.most_at_once == 4
    assert seconds < 16 * 0.1, "one after the other would take 2 s"


@pytest.mark.parametrize(
    "failure",
    [error(500), error(503), error(429), error(408), Said(hang_up=True), Said(b"<html>", 502, {}), Said(delay=0.6)],
    ids=["500", "503", "429", "408", "hang up", "html", "silence"],
)
def test_a_failure_that_passes_is_tried_again(failure: Said, opened: Open, capsys: pytest.CaptureFixture[str]) -> None:
    with ChatServer(lambda prompt, before: failure if prompt == "b" and before < 2 else completion("ok")) as server:
        endpoint = opened(server, timeout=0.3)
        assert ask(endpoint, ["a", "b", "c"]) == ["ok"] * 3
    assert sorted(server.prompts) == ["a", "b", "b", "b", "c"]
    assert (endpoint.requests, endpoint.retries) == (5, 2)
    assert endpoint.metrics(PANEL, 1)["endpoint/bad_answers"] == 0
    assert capsys.readouterr().out.count("trying again") == 1


def test_waits_grow_and_retry_after_is_obeyed(opened: Open) -> None:
    with ChatServer(lambda prompt, before: error(500) if before < 3 else completion("ok")) as server:
        ask(opened(server, first_wait=0.1), ["a"])
    waits = np.diff(server.times)
    assert all(wait >= least for wait, least in zip(waits, [0.05, 0.1, 0.2], strict=True)), waits
    patient = error(429, Retry_After="0.5")
    with ChatServer(lambda prompt, before: patient if before < 1 else completion("ok")) as server:
        ask(opened(server, first_wait=0.0), ["b"])
    assert np.diff(server.times)[0] >= 0.5


def test_a_server_that_stays_broken_ends_it_and_nothing_is_asked_twice(opened: Open) -> None:
    broken = True

    def script(prompt: str, before: int) -> Said:
        return error(500, message="out of order") if broken and prompt == "prompt 5" else completion(prompt)

    with ChatServer(script) as server:
        message = r"failed 3 times on one request, at last with: .*out of order.*The answers so far are kept"
        with pytest.raises(EndpointError, match=message):
            ask(opened(server, concurrency=1, max_retries=2), prompts(10))
        assert server.prompts == [*prompts(5), *["prompt 5"] * 3], "the rest is not sent"
        broken = False
        endpoint = opened(server)
        assert ask(endpoint, prompts(10)) == prompts(10)
    assert sorted(server.prompts[8:]) == prompts(10)[5:]
    assert endpoint.requests == 5
    assert endpoint.metrics(PANEL, 1)["endpoint/answers"] == 10


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (error(401, message="wrong key sk-secret"), "wants another key .*see OPENAI_API_KEY, the key in it is refused"),
        (error(403), "wants another key"),
        (error(404, message="no model m"), r"does not know the model 'm'.*no model m.*check --model, and --base-url"),
        (error(400, message="max_tokens\nis not supported"), "refuses the request: 400: max_tokens is not supported"),
        (error(429, "insufficient_quota", "pay first"), "refuses the request: 429: pay first"),
        (error(429, Retry_After="3600"), "asks to come back in 3600 s"),
    ],
    ids=["401", "403", "404", "400", "quota", "far too long"],
)
def test_what_ends_it_at_once(said: Said, words: str, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    with ChatServer(lambda prompt, before: said) as server, pytest.raises(EndpointError, match=words) as caught:
        ask(opened(server, concurrency=1), prompts(5))
    assert len(server.requests) == 1
    assert "sk-secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_key_where_one_is_wanted(opened: Open) -> None:
    with ChatServer(lambda prompt, before: error(401)) as server, pytest.raises(EndpointError, match="it is not set"):
        ask(opened(server), ["a"])


def test_an_address_without_v1(opened: Open) -> None:
    with ChatServer(echo) as server:
        server.url = server.url.removesuffix("/v1")
        with pytest.raises(EndpointError, match=r"no /chat/completions.*mostly ends in /v1"):
            ask(opened(server), ["a"])


NONSENSE = {
    "no JSON": (Said(b"certainly!"), "not a chat completion", 3),
    "HTML": (Said(b"<!doctype html><p>Sign in", 200, {"Content-Type": "text/html"}), "not a chat completion", 3),
    "nothing": (Said(), "not a chat completion", 3),
    "other JSON": (Said(b'{"choices": "go up"}'), "not a chat completion", 3),
    "half a character": (completion("\ud800"), "not a chat completion", 3),
    "no choices": (Said(b'{"choices": []}'), "no choice in it", 3),
    "null": (completion(None), "no text", 3),
    "only thought": (completion(None, finish_reason="length"), "no text within the token limit", 1),
    "filter": (completion(None, finish_reason="content_filter"), "refused by a content filter", 1),
    "refusal": (completion(None, refusal="I cannot"), "refused by a content filter", 1),
    "filter before": (error(400, "content_filter"), "refused by a content filter", 1),
    "too long": (completion("go up " * 20_000), "too long", 1),
}


@pytest.mark.parametrize(("said", "reason", "requests"), NONSENSE.values(), ids=NONSENSE.keys())
def test_nonsense_is_an_empty_reply_and_counted(said: Said, reason: str, requests: int, opened: Open) -> None:
    with ChatServer(lambda prompt, before: said if prompt == "b" else completion("ok")) as server:
        endpoint = opened(server, max_retries=2)
        assert ask(endpoint, ["a", "b", "c"]) == ["ok", "", "ok"]
        assert ask(opened(server, max_retries=2), ["a", "b", "c"]) == ["ok", "", "ok"], "it stands"
    assert server.prompts.count("b") == requests
    assert endpoint.metrics(PANEL, 1)["endpoint/bad_answers"] == 1
    assert endpoint.summary()["bad"] == {reason: 1}


def test_nonsense_that_passes_is_paid_for_but_not_bad(opened: Open) -> None:
    with ChatServer(lambda prompt, before: completion(None if before < 2 else "ok")) as server:
        endpoint = opened(server)
        assert ask(endpoint, ["a"]) == ["ok"]
    summary = endpoint.summary()
    assert summary["endpoint/bad_answers"] == 0
    assert summary["endpoint/calls"] == 3
    assert summary["endpoint/completion_tokens"] == 9


def test_the_budget_is_never_exceeded_and_can_be_raised(opened: Open) -> None:
    with ChatServer(lambda prompt, before: completion(prompt)._replace(delay=0.02)) as server:
        for budget, sent in ((5, 5), (5, 5), (9, 9)):
            with pytest.raises(BudgetSpent):
                ask(opened(server, concurrency=3, budget_calls=budget), prompts(12))
            assert len(server.requests) == sent
        assert ask(opened(server, budget_calls=12), prompts(12)) == prompts(12)
        assert ask(opened(server, budget_calls=12), prompts(12)) == prompts(12), "what is there costs nothing"
    assert sorted(server.prompts) == sorted(prompts(12)), "each once"


def test_answers_belong_to_their_pass_episode_turn_and_prompt(opened: Open) -> None:
    with ChatServer(lambda prompt, before: completion(f"{prompt} {before}")) as server:
        endpoint = opened(server)
        assert ask(endpoint, ["a"]) == ["a 0"]
        assert ask(endpoint, ["a"]) == ["a 0"]
        assert ask(endpoint, ["a"], seed=2) == ["a 1"]
        assert ask(endpoint, ["a"], turn=1) == ["a 2"]
        assert ask(endpoint, ["b", "c"]) == ["b 0", "c 0"]
        assert endpoint.metrics(PANEL, 1)["endpoint/answers"] == 2, "those of the last pass"
        assert endpoint.summary()["endpoint/answers"] == 5


def test_a_journal_of_other_settings(opened: Open) -> None:
    with ChatServer(echo) as server:
        ask(opened(server), ["a"])
        with pytest.raises(
            ValueError, match=r"other settings \(temperature was 0.4 and is 0.7\): choose another --out"
        ):
            opened(server, SamplingConfig(temperature=0.7))
        with pytest.raises(ValueError, match="model was 'm' and is 'n'"):
            opened(server, model="n")


def test_a_journal_survives_a_kill(tmp_path: Path) -> None:
    path, keys = tmp_path / "answers.jsonl", [Key("test", "abc", 1, i, 0, "p") for i in range(3)]
    journal = Journal(path, {"model": "m"})
    for i, key in enumerate(keys):
        journal.add(key, Answer(f"line\u2028{i}", calls=i))
    journal.close()
    path.write_bytes(path.read_bytes()[:-9])
    again = Journal(path, {"model": "m"})
    assert [key in again for key in keys] == [True, True, False]
    assert again[keys[1]] == Answer("line\u20281", calls=1)
    again.add(keys[2], Answer("new"))
    again.close()
    last = Journal(path, {"model": "m"})
    assert [answer.text for _, answer in last.items()] == ["line\u20280", "line\u20281", "new"]
    last.close()
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0][:-5])  # killed at the very start
    Journal(path, {"model": "other"}).close()
    for damage in (b"{}\n", b"[]\n", b"no\n", b'{"split": "test"}\n'):
        path.write_bytes(lines[0] + damage + lines[1])
        with pytest.raises(ValueError, match=r"answers.jsonl, line 2 is no line of a journal"):
            Journal(path, {"model": "m"})


def test_two_processes_may_add_to_one_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one adds while the other opens the file is not cut off."""
    path, keys = tmp_path / "answers.jsonl", [Key("test", "abc", 1, i, 0, "p") for i in range(3)]
    first, read = Journal(path, {"model": "m"}), Journal._read
    first.add(keys[0], Answer("0"))

    def read_slowly(journal: Journal, lines: list[bytes], settings: Any) -> None:
        read(journal, lines, settings)
        first.add(keys[1], Answer("1"))

    monkeypatch.setattr(Journal, "_read", read_slowly)
    second = Journal(path, {"model": "m"})
    monkeypatch.undo()
    second.add(keys[2], Answer("2"))
    for journal in (first, second):
        journal.close()
    third = Journal(path, {"model": "m"})
    assert [answer.text for _, answer in third.items()] == ["0", "1", "2"]
    third.close()


def test_read_answer_by_hand() -> None:
    body = {"choices": [{"message": {"content": "up"}, "finish_reason": "stop"}], "usage": None}
    assert read_answer(json.dumps(body).encode()) == Answer("up")
    body["usage"] = {"prompt_tokens": "many", "completion_tokens": 4}
    assert read_answer(json.dumps(body).encode()) == Answer("up", completion_tokens=4)
    for nonsense in (-1, True, 2.5, 10**400, [3]):  # the last but one is more than a float can hold
        body["usage"] = {"prompt_tokens": 7, "completion_tokens": nonsense}
        assert read_answer(json.dumps(body).encode()) == Answer("up", prompt_tokens=7)
    assert read_answer(completion("x" * LONGEST_ANSWER).body).text == "x" * LONGEST_ANSWER
    assert read_answer(completion("x" * (LONGEST_ANSWER + 1)).body) == Answer("", False, "too long", 10, 3)


def test_retry_after_by_hand() -> None:
    assert retry_after({}) is None
    assert retry_after({"retry-after": "2"}) == 2.0
    assert retry_after({"retry-after-ms": "250", "retry-after": "2"}) == 0.25
    assert retry_after({"retry-after": "-1"}) == 0.0
    assert retry_after({"retry-after": "soon"}) is None
    assert retry_after({"retry-after": "nan"}) is None
    in_a_minute = email.utils.format_datetime(email.utils.localtime(), usegmt=False)
    assert retry_after({"retry-after": in_a_minute}) == 0.0
    later = email.utils.formatdate(time.time() + 60, usegmt=True)
    assert 58 <= (retry_after({"retry-after": later}) or 0) <= 60


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"base_url": "localhost:8000"}, "needs --base-url, such as http://localhost:8000/v1, and --model"),
        ({"model": ""}, "needs --base-url"),
        ({"concurrency": 0}, "--concurrency is 0, but has to be at least 1"),
        ({"max_retries": -1}, "--max-retries is -1"),
        ({"timeout": 0.0}, "--timeout is 0.0 seconds, but has to be above 0"),
        ({"budget_calls": -1}, "--budget-calls is -1"),
    ],
)
def test_settings_that_are_not_possible(settings: dict[str, Any], words: str, tmp_path: Path) -> None:
    config = dataclasses.replace(QUICK, **{"base_url": "http://localhost:1/v1", **settings})
    with pytest.raises(ValueError, match=words):
        Endpoint(config, SAMPLING, 64, TOKENIZER, tmp_path / "answers.jsonl")


def test_the_package_is_an_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    config = dataclasses.replace(QUICK, base_url="http://localhost:1/v1")
    with pytest.raises(ValueError, match=r"pip install 'hgpo_jax\[openai\]'"):
        Endpoint(config, SAMPLING, 64, TOKENIZER, tmp_path / "answers.jsonl")
