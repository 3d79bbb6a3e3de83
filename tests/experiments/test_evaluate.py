"""Any policy on fixed panels: its figures, what is kept of them, and what a user may get wrong."""

import contextlib
import dataclasses
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from chat_server import ChatServer, Said, completion
from rich.console import Console
from tiny import ROOT, wait_for

from envs.core import Panel, make_panel
from experiments import evaluate, export
from experiments.configs import RunConfig, config_to_json, load_config
from experiments.endpoint import EndpointConfig
from experiments.evaluate import EvaluateCommand
from experiments.evaluation_report import Pass, further_table, success_table
from experiments.policies import Settings, config_of, open_policy
from experiments.rollouts import Rollouts
from experiments.scripted import scripted_act
from experiments.transcripts import read_transcripts
from hgpo_jax.config import MeshConfig, ModelConfig
from hgpo_jax.learner.checkpoint import Checkpoints
from hgpo_jax.learner.update import init_state, make_optimizer
from hgpo_jax.policy.tokenization import ByteTokenizer
from hgpo_jax.rollout.collector import Outcome

LAKES = "hgpo/FrozenLakeText-v0"
CHECKPOINT = Path(__file__).parents[1] / "golden/qwen/qwen2_tied"
SEEN = re.compile(r"now up (\w+) down (\w+) left (\w+) right (\w+) goal ([a-z ]+)\nyou$")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results go to runs/ of the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def run(policy: str, **settings: Any) -> dict[str, Any]:
    return evaluate.evaluate(EvaluateCommand(policy, **{"tasks": 6, "seeds": (1, 2), **settings}))


def figures(record: dict[str, Any], metric: str = "success", split: str = "test") -> list[float]:
    return [one["metrics"][metric] for one in record["splits"][split]["passes"]]


def error_of(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    with pytest.raises(SystemExit) as stop:
        evaluate.main(list(args))
    assert stop.value.code == 2
    said = capsys.readouterr().out
    assert said.count("\n") == 1, said
    return said


def greedy(prompt: str) -> str:
    """Toward the goal where there is ice, else away from it; now and then it mumbles."""
    seen = SEEN.search(prompt)
    assert seen is not None
    tiles = dict(zip(("up", "down", "left", "right"), seen.groups(), strict=False))
    if list(tiles.values()).count("wall") == 2 and "before" in prompt:
        return "where am i?"
    ways = [*seen[5].split(), "up", "left", "down", "right"]
    way = next(way for way in ways if tiles.get(way) in ("ice", "goal"))
    return f"go {way if way in ('up', 'down') else 'to the ' + way}"


class TestScripted:
    def test_an_expert_solves_everything(self, capsys: pytest.CaptureFixture[str]) -> None:
        evaluate.main(["expert", "--tasks", "6", "--seeds", "1", "2"])
        said = capsys.readouterr().out
        panel = make_panel(LAKES, "test", 6, 0)
        assert f"panel {panel}: 6 tasks, seeds 1 2" in said
        assert "FrozenLake: random lakes of 4x4 tiles" in said
        assert "planner: success in per cent" in said
        assert re.search(r"split\s+All \n .*\n test\s+100\.0±0\.0", said)
        record = json.loads(Path("runs/evaluate-planner-FrozenLakeText/evaluation.json").read_text())
        assert record["policy"] == "planner"
        assert record["complete"]
        assert record["splits"]["test"]["panel"] == {
            "name": str(panel),
            "split": "test",
            "seed": 0,
            "tasks": list(panel.tasks),
            "hash": panel.hash,
        }
        assert record["splits"]["test"]["mean"]["success"] == 1.0
        assert record["splits"]["test"]["std"]["success"] == 0.0
        assert record["environment"]["versions"]["jax"] == jax.__version__
        assert record["command"]["seeds"] == [1, 2]
        assert not Path("runs/evaluate-planner-FrozenLakeText/transcripts.jsonl").exists()

    def test_figures_are_those_of_the_episodes(self) -> None:
        settings = Settings(env_options={"size": 3})
        record, again = (run("random", tasks=16, group_size=4, seeds=(5,), settings=settings) for _ in range(2))
        (only,) = record["splits"]["test"]["passes"]
        assert again["splits"]["test"]["passes"][0]["outcomes"] == only["outcomes"]
        outcomes, metrics = only["outcomes"], only["metrics"]
        tasks = record["splits"]["test"]["panel"]["tasks"]
        assert [outcome["task"] for outcome in outcomes] == [task for task in tasks for _ in range(4)]
        assert 0 < metrics["success"] == np.mean([outcome["won"] for outcome in outcomes]) < 1
        assert metrics["episode_return"] == pytest.approx(np.mean([o["episode_return"] for o in outcomes]))
        assert metrics["episode_length"] == np.mean([outcome["steps"] for outcome in outcomes])
        assert record["env_options"] == {"size": 3}
        assert not {"tokens", "response_length"} & metrics.keys(), "its replies are not in tokens"

    def test_seeds_decide_the_draws(self) -> None:
        first, second = figures(run("random", tasks=40), "episode_length")
        assert first != second
        assert figures(run("random", tasks=40, seeds=(2, 1)), "episode_length") == [second, first]

    def test_settings_replace_the_configs(self) -> None:
        settings = Settings(max_steps=3, history_length=0, temperature=0.9, max_response_length=77)
        record = run("planner", settings=settings, splits=("train", "test"), panel_seed=4, transcripts=True)
        assert record["rollout"] == {"history_length": 0, "max_steps": 3, "max_response_length": 77}
        assert record["sampling"]["temperature"] == 0.9
        assert list(record["splits"]) == ["train", "test"]
        assert record["splits"]["train"]["panel"]["seed"] == 4
        assert figures(record) == [0.0, 0.0], "a shortest way has six steps"
        episodes = read_transcripts(Path("runs/evaluate-planner-FrozenLakeText/transcripts.jsonl"))
        assert [(e.split, e.seed) for e in episodes[::6]] == [("train", 1), ("train", 2), ("test", 1), ("test", 2)]
        assert {len(e.turns) for e in episodes} == {3}
        assert not any("before" in turn.prompt for e in episodes for turn in e.turns)

    def test_a_shop_has_a_score_beside_success(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("WEBSHOP_DATA", raising=False)
        args = ["shopper", "--config", "webshop_tiny", "--splits", "test", "--tasks", "20", "--seeds", "1", "2"]
        evaluate.main([*args, "--render", "page.html"])
        said = capsys.readouterr().out
        record = json.loads(Path("runs/evaluate-shopper-WebShop/evaluation.json").read_text())
        (first, second) = record["splits"]["test"]["passes"]
        scores = [outcome["score"] for outcome in first["outcomes"]]
        assert all(0 <= score <= 1 for score in scores)
        assert first["outcomes"] == second["outcomes"]
        score, success = first["metrics"]["score"], first["metrics"]["success"]
        assert score == pytest.approx(np.mean(scores))
        assert success == np.mean([score == 1 for score in scores]) < score < 1
        assert re.search(rf"split +All +Score *\n.*\n *test +{100 * success:.1f}±0\.0 +{100 * score:.1f}±0\.0", said)
        assert "WebShop: a generated catalogue, 2,000 products, synthetic goals" in said
        page = Path("page.html").read_text()
        assert page.count(" · score ") == 20
        assert "with color: " in page.split("<section")[0], "the goals stand in the table of contents"

    def test_another_environment_leaves_the_configs_options(self) -> None:
        config = dataclasses.replace(load_config("frozen_lake"), env="a", env_options={"size": 5}, data="there")
        same, other = Settings(env="a").apply(config), Settings(env="b", env_options={"x": 1}).apply(config)
        assert (same.env_options, same.data) == ({"size": 5}, "there")
        assert (other.env, other.env_options, other.data) == ("b", {"x": 1}, "")

    def test_a_page_of_the_first_seeds_episodes(self) -> None:
        run("random", render=Path("pages/random.html"), transcripts=True, group_size=3)
        page = Path("pages/random.html").read_text()
        episodes = read_transcripts(Path("runs/evaluate-random-FrozenLakeText/transcripts.jsonl"))
        first, second = episodes[:18], episodes[18:]
        assert {e.seed for e in first} == {1}
        assert {e.seed for e in second} == {2}
        assert page.count("<details") >= sum(len(e.turns) for e in first)
        assert all(turn.advantage is not None and turn.group_sizes for e in episodes for turn in e.turns)
        assert any(turn.advantage for e in episodes for turn in e.turns)


class TestTable:
    TYPES = ("pick_and_place_simple", "pick_two_obj_and_place", "other")

    def lines(self, table: Any) -> list[list[str]]:
        console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
        with console.file:
            console.print(table)
            return [line.split() for line in console.export_text().splitlines() if line.strip(" ─")]

    def test_by_hand(self) -> None:
        def one(seed: int, success: float, pick: float, **more: float) -> Pass:
            metrics = {"success": success, "success/pick_and_place_simple": pick, "episode_return": 2.0, **more}
            return Pass(Panel("seen", 0, (0,), "a"), seed, metrics, [Outcome(0, "", True, 2.0, 1)])

        passes = [one(1, 0.5, 1.0, response_length=3.0), one(2, 0.25, 1.0, response_length=4.0)]
        assert self.lines(success_table(passes, self.TYPES)) == [
            ["split", "Pick", "Pick2", "other", "All"],
            ["seen", "100.0±0.0", "-", "-", "37.5±12.5"],
        ]
        assert self.lines(success_table(passes[:1], ())) == [["split", "All"], ["seen", "50.0"]]
        scored = [one(1, 0.5, 1.0, score=0.75), one(2, 0.25, 1.0, score=0.5)]
        assert self.lines(success_table(scored, ())) == [
            ["split", "All", "Score"],
            ["seen", "37.5±12.5", "62.5±12.5"],
        ]
        assert self.lines(further_table(passes)) == [
            ["split", "return", "reply", "(tokens)"],
            ["seen", "2.0±0.0", "3.5±0.5"],
        ]

    def test_six_types_fit_on_a_terminal(self) -> None:
        types = [f"type{i}" for i in range(6)]
        metrics = {"success": 1.0} | {f"success/{name}": 1.0 for name in types}
        passes = [Pass(Panel("unseen", 0, (0,), "a"), seed, metrics, []) for seed in (1, 2)]
        assert self.lines(success_table(passes, types))[1] == ["unseen", *["100.0±0.0"] * 7]


@pytest.fixture(scope="module")
def a_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunConfig, list[Any]]:
    """A run's folder with two checkpoints, the earlier one the better, and their parameters."""
    config = load_config("frozen_lake")
    model = ModelConfig(config.model.vocab_size, 16, 32, 1, 2, 2, 8)
    config = dataclasses.replace(config, model=model, mesh=MeshConfig(fsdp=2, tensor=2))
    config = dataclasses.replace(config, rollout=dataclasses.replace(config.rollout, max_steps=3))
    folder = tmp_path_factory.mktemp("run")
    (folder / "config.json").write_text(json.dumps(config_to_json(config)))
    states = [init_state(model, make_optimizer(config.optimizer), jax.random.key(seed), None) for seed in range(2)]
    with Checkpoints(folder / "checkpoints") as checkpoints:
        for iteration, state in enumerate(states):
            checkpoints.save(iteration, state, metrics={"success": 1.0 - iteration})
    return folder, config, [state.params for state in states]


class TestModels:
    ALONE = Settings(mesh=(1, 1, 1))

    def expected(self, config: RunConfig, params: Any) -> dict[str, float]:
        alone = dataclasses.replace(config, mesh=MeshConfig())
        panel = make_panel(LAKES, "test", 6, 0)
        return Rollouts(alone).evaluate(params, panel=panel, seed=2).metrics

    def same(self, metrics: dict[str, float], expected: dict[str, float]) -> bool:
        timing = ("seconds", "tokens_per_second")
        return all(metrics[name] == expected[name] for name in expected if name not in timing)

    @pytest.mark.slow
    def test_a_runs_checkpoints(self, a_run: tuple[Path, RunConfig, list[Any]]) -> None:
        folder, config, (best, latest) = a_run
        record = run(str(folder), settings=self.ALONE)
        assert self.same(record["splits"]["test"]["passes"][1]["metrics"], self.expected(config, latest))
        assert json.loads((folder / "evaluation.json").read_text()) == record
        assert record["rollout"]["max_steps"] == 3, "the run's own config"
        record = run(str(folder), which="best", settings=self.ALONE, output=Path("there"))
        assert self.same(record["splits"]["test"]["passes"][1]["metrics"], self.expected(config, best))
        assert Path("there/evaluation.json").exists()
        assert not self.same(self.expected(config, best), self.expected(config, latest))

    def test_a_run_on_its_mesh_or_another(self, a_run: tuple[Path, RunConfig, list[Any]]) -> None:
        folder, _, (_, latest) = a_run
        for mesh, devices in ((None, 4), ((1, 1, 1), 1), ((1, 8, 1), 8)):
            config = config_of(str(folder), None, Settings(mesh=mesh))
            with open_policy(str(folder), config) as policy:
                leaf = jax.tree.leaves(policy.params)[0]
                assert len(leaf.sharding.device_set) == devices
                np.testing.assert_array_equal(leaf, jax.tree.leaves(latest)[0])

    @pytest.mark.slow
    def test_an_exported_folder_plays_as_the_run(self, a_run: tuple[Path, RunConfig, list[Any]]) -> None:
        folder, config, (_, latest) = a_run
        export.export(folder, Path("exported"))
        with pytest.raises(ValueError, match="exported is a model, which has no environment of its own"):
            run("exported", settings=Settings(max_steps=3))
        record = run("exported", config="frozen_lake", settings=Settings(max_steps=3))
        assert self.same(record["splits"]["test"]["passes"][1]["metrics"], self.expected(config, latest))
        assert record["policy"] == "exported"
        assert Path("runs/evaluate-exported-FrozenLakeText/evaluation.json").exists()

    @pytest.mark.slow
    def test_a_chat_models_folder(self) -> None:
        """Shape, tokenizer and chat template are the folder's own."""
        settings = Settings(max_steps=1, max_response_length=4, env=LAKES, history_length=1)
        record = run(str(CHECKPOINT), config="qwen2_5_1_5b", settings=settings, tasks=2, seeds=(1,), transcripts=True)
        assert figures(record, "episodes") == [2]
        assert Path("runs/evaluate-qwen-qwen2_tied-FrozenLakeText/transcripts.jsonl").exists()


@contextlib.contextmanager
def chat(script: Callable[[str, int], Said]) -> Iterator[tuple[ChatServer, EndpointConfig]]:
    with ChatServer(script) as server:
        yield server, EndpointConfig(base_url=server.url, model="org/m", first_wait=0.01, timeout=5)


class TestEndpoint:
    FOLDER = Path("runs/evaluate-org-m-FrozenLakeText")

    def test_figures_are_those_of_the_policy_that_the_server_plays(self, capsys: pytest.CaptureFixture[str]) -> None:
        with chat(lambda prompt, before: completion(greedy(prompt))) as (server, endpoint):
            record = run("endpoint", endpoint=endpoint, tasks=12)
        act = scripted_act(lambda request: greedy(request.text), ByteTokenizer())
        config = load_config("frozen_lake")
        wide = dataclasses.replace(config.rollout, max_prompt_length=10_000)
        model = dataclasses.replace(config.model, vocab_size=258)
        rollouts = Rollouts(dataclasses.replace(config, rollout=wide, model=model), ByteTokenizer())
        panel = make_panel(LAKES, "test", 12, 0)
        for one in record["splits"]["test"]["passes"]:
            expected = rollouts.evaluate({}, panel=panel, seed=one["seed"], act=act)
            assert one["outcomes"] == [outcome._asdict() for outcome in expected.outcomes]
            for name in ("success", "episode_return", "episode_length", "valid_action_share"):
                assert one["metrics"][name] == expected.metrics[name]
        assert 0 < record["splits"]["test"]["mean"]["success"] < 1
        assert 0 < record["splits"]["test"]["mean"]["valid_action_share"] < 1
        steps = sum(outcome["steps"] for one in record["splits"]["test"]["passes"] for outcome in one["outcomes"])
        assert len(server.requests) == steps == record["endpoint"]["requests"]
        assert record["endpoint"]["endpoint/prompt_tokens"] == 10 * steps
        assert figures(record, "response_length") == [3.0, 3.0], "in the server's tokens"
        episodes = read_transcripts(self.FOLDER / "transcripts.jsonl")
        noted = [turn for episode in episodes for turn in episode.turns]
        assert sorted(turn.prompt for turn in noted) == sorted(server.prompts)
        assert all(turn.reply == greedy(turn.prompt) for turn in noted)
        said = capsys.readouterr().out
        assert f"endpoint: {steps} answers, 0 of them bad, {10 * steps:,} tokens of prompts" in said
        assert json.loads((self.FOLDER / "evaluation.json").read_text()) == record

    def test_a_shop(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A server that buys the first hit for the task's words."""
        monkeypatch.delenv("WEBSHOP_DATA", raising=False)

        def buy_first(prompt: str) -> str:
            actions = re.findall(r"'((?:search|click)\[.*\])'", prompt.split("possible here:")[1])
            if actions[0].startswith("search"):
                action = f"search[{re.findall('Your task: (.*)', prompt)[0]}]"
            else:
                action = "click[buy now]" if "click[buy now]" in actions else actions[2]
            return f"<think>Well.</think> <action>{action}</action>"

        settings = Settings(env="hgpo/WebShop-v0", env_options={"products": 300}, max_steps=5)
        with chat(lambda prompt, before: completion(buy_first(prompt))) as (server, endpoint):
            record = run("endpoint", endpoint=endpoint, settings=settings, splits=("test",))
        for one in record["splits"]["test"]["passes"]:
            assert [outcome["steps"] for outcome in one["outcomes"]] == [3] * 6
            assert one["metrics"]["valid_action_share"] == 1
            assert 0.3 < one["metrics"]["score"] < 1
        assert len(server.requests) == 36

    def test_the_same_command_asks_for_nothing_twice(self) -> None:
        with chat(lambda prompt, before: completion(greedy(prompt))) as (server, endpoint):
            first = run("endpoint", endpoint=endpoint)
            sent = len(server.requests)
            again = run("endpoint", endpoint=dataclasses.replace(endpoint, concurrency=1), seeds=(2, 1))
            assert len(server.requests) == sent
            assert figures(again) == figures(first)[::-1]
            run("endpoint", endpoint=endpoint, seeds=(3,))
            assert len(server.requests) > sent

    def test_a_budget_ends_it_cleanly_and_a_larger_one_goes_on(self, capsys: pytest.CaptureFixture[str]) -> None:
        with chat(lambda prompt, before: completion(greedy(prompt))) as (server, endpoint):
            whole = run("endpoint", endpoint=endpoint, output=Path("whole"))
            sent = sorted(server.prompts)
            server.requests.clear()
            first_pass = int(figures(whole, "endpoint/answers")[0])
            for budget, passes in ((5, 0), (first_pass + 2, 1)):
                record = run("endpoint", endpoint=dataclasses.replace(endpoint, budget_calls=budget))
                assert len(server.requests) == budget
                assert not record["complete"]
                said = capsys.readouterr().out
                assert f"the budget of {budget} answered calls is spent; {passes} of 2 passes are whole" in said
                assert len(read_transcripts(self.FOLDER / "transcripts.jsonl")) == 6 * passes
            assert figures(record) == figures(whole)[:1]
            record = run("endpoint", endpoint=dataclasses.replace(endpoint, budget_calls=len(sent)))
            assert sorted(server.prompts) == sent, "each once, in three processes' stead"
        assert record["complete"]
        assert [one["outcomes"] for one in record["splits"]["test"]["passes"]] == [
            one["outcomes"] for one in whole["splits"]["test"]["passes"]
        ]

    def test_bad_answers_are_invalid_actions(self, capsys: pytest.CaptureFixture[str]) -> None:
        with chat(lambda prompt, before: Said(b"<html>")) as (server, endpoint):
            settings = Settings(max_steps=2)
            record = run("endpoint", endpoint=dataclasses.replace(endpoint, max_retries=1), settings=settings)
        assert figures(record, "endpoint/bad_answers") == [12, 12]
        assert figures(record, "valid_action_share") == [0.0, 0.0]
        assert len(server.requests) == 48
        assert "24 answers, 24 of them bad (24 not a chat completion)" in capsys.readouterr().out

    def test_errors_are_one_line(self, capsys: pytest.CaptureFixture[str]) -> None:
        said = b'{"error": {"message": "no [/b] key [x]"}}'
        with chat(lambda prompt, before: Said(said, 401)) as (server, _):
            args = ["--base-url", server.url, "--model", "m", "--tasks", "3", "--concurrency", "1"]
            assert "wants another key (401: no [/b] key [x])" in error_of_last_line(capsys, "endpoint", *args)
            assert len(server.requests) == 1

    @pytest.mark.slow
    def test_interrupted_and_killed_it_goes_on(self) -> None:
        """Ctrl-C and kill -9 in the middle; the third process asks for the rest alone."""
        # A program that was started in the background ignores Ctrl-C, and so would its children.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        journal = Path("there/answers.jsonl").absolute()

        def answers() -> int:
            return journal.read_bytes().count(b"\n") if journal.exists() else 0

        with chat(lambda prompt, before: completion(greedy(prompt))._replace(delay=0.05)) as (server, endpoint):
            args = ["endpoint", "--base-url", server.url, "--model", "m", "--tasks", "10", "--seeds", "1"]
            command = [sys.executable, "-m", "experiments.evaluate", *args, "--concurrency", "2", "--output", "there"]
            command[-1] = str(journal.parent)
            for number, code in ((signal.SIGINT, 130), (signal.SIGKILL, -9)):
                before = answers()
                process = subprocess.Popen(
                    command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
                )
                wait_for(lambda before=before: answers() >= before + 8, process)
                process.send_signal(number)
                output, _ = process.communicate(timeout=60)
                assert process.returncode == code, output
                assert (number == signal.SIGKILL) or "the same command goes on" in output
            lost = len(server.requests) - (answers() - 1)
            assert lost <= 2, "what the killed process waited for"
            record = run(
                "endpoint",
                endpoint=dataclasses.replace(endpoint, model="m"),
                output=journal.parent,
                tasks=10,
                seeds=(1,),
            )
        assert len(server.requests) == record["endpoint"]["endpoint/answers"] + lost
        assert record["endpoint"]["requests"] < len(server.requests) - 14


def error_of_last_line(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    with pytest.raises(SystemExit) as stop:
        evaluate.main(list(args))
    assert stop.value.code == 2
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("error: ")
    return last


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (
            ["nope"],
            "no policy 'nope': it is no run, not a Hugging Face model's folder or hub id (OWNER/NAME), and none",
        ),
        (["nope"], "none of endpoint, random, expert, planner (experts of hgpo/FrozenLakeText-v0)"),
        (["."], "neither a run's folder (checkpoints, config.json) nor a Hugging Face model's folder"),
        (["searcher"], "none of endpoint, random, expert, planner"),
        (["expert", "--splits", "test", "seen"], "has no split 'seen'; there are: train, test"),
        (["expert", "--config", "nope"], "no config named 'nope'"),
        (["expert", "--env", "hgpo/Nope-v0"], "text environments here are hgpo/FrozenLakeText-v0"),
        (["expert", "--env-options", "depth", "3"], "has no option depth; there are: size"),
        (["expert", "--seeds"], "--seeds needs at least one seed"),
        (["expert", "--seeds", "1", "1"], "--seeds needs at least one seed, each once"),
        (["expert", "--seeds", "-1"], "have to lie between 0 and"),
        (["expert", "--group-size", "0"], "--group-size is 0"),
        (["expert", "--tasks", "0"], "lakes have no end"),
        (["expert", "--tasks", "-1"], "size and seed have to be at least 0"),
        (["expert", "--max-steps", "0"], "--max-steps is 0, but has to be at least 1"),
        (["expert", "--temperature", "nan"], "--temperature is nan, but has to be at least 0"),
        (["endpoint", "--model", "m"], "needs --base-url, such as http://localhost:8000/v1, and --model"),
        (["--which", "best", str(CHECKPOINT.parent)], "neither a run's folder"),
    ],
)
def test_bad_input_is_named(args: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert words in error_of(capsys, *args)


def test_a_run_has_its_own_config(a_run: tuple[Path, RunConfig, list[Any]], capsys: pytest.CaptureFixture[str]) -> None:
    words = "is a run, which has its own config: leave out --config"
    assert words in error_of(capsys, str(a_run[0]), "--config", "frozen_lake")
