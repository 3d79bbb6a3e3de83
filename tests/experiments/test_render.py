"""The page of episodes: whole, escaped, balanced HTML; advantages and group sizes worked out by hand."""

import dataclasses
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from envs.alfworld.protocol import parse_reply
from experiments.configs import RunConfig, load_config
from experiments.render import annotate, render_html, reply_parts
from experiments.transcripts import Episode, Turn
from hgpo_jax.config import HGPOConfig
from hgpo_jax.types import Trajectories

VOID = {"meta", "br", "hr", "img", "link", "input"}


class Page(HTMLParser):
    """Reads a page, demands that tags close in order, and keeps elements and text."""

    def __init__(self, html):
        super().__init__()
        self.open, self.elements, self.words = [], [], []
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return " ".join("".join(self.words).split())

    def having(self, name):
        return [attributes[name] for _, attributes in self.elements if name in attributes]


def turn(reply="go up", **changes):
    return dataclasses.replace(Turn("a wall", "what now?", reply, True, 0.0), **changes)


def episode(*turns, **changes):
    return dataclasses.replace(Episode(5, "", "test", 0, 123, False, 0.0, list(turns) or [turn()]), **changes)


def read(path, *episodes, title="a run"):
    render_html(title, episodes, path)
    return Page(path.read_text(encoding="utf-8"))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "new folder" / "page.html"


def test_every_figure_is_there(path):
    first = turn(
        "<think>Mugs are in cabinets.</think>\n<action> go to cabinet 1 </action>",
        observation="-= Welcome =-\n\nYour task is to: put a mug in fridge.",
        advantage=0.5,
        group_sizes=[16, 1, 0],
    )
    last = turn("what?", valid=False, reward=10.0, advantage=-1.25, group_sizes=[4, 2, 1])
    won = episode(first, last, task=17, task_type="pick", split="seen", won=True, episode_return=10.0)
    page = read(path, won, episode(turn(), episode=1))
    for words in (
        "1 of 2 won (50.0%); mean return 5.00, mean length 1.5 steps; 1 of 3 replies invalid.",
        "result return steps task goal type 1 won 10 2 seen 17 put a mug in fridge. pick 2 lost 0 1 test 5",
        "1. put a mug in fridge. won · return 10 · 2 steps · seen 17 · pick · seed 123 · episode 0",
        "step 1 valid reward 0 advantage +0.500 groups 16 · 1 · – -= Welcome =- Your task is to: put a mug in fridge.",
        "prompt, 9 characters what now? Mugs are in cabinets. go to cabinet 1",
        "step 2 invalid reward 10 advantage −1.250 groups 4 · 2 · 1 a wall",
        "2. test 5 lost · return 0 · 1 steps · test 5 · seed 123 · episode 1",
    ):
        assert words.replace(" ", "") in page.text.replace(" ", ""), words
    classes = page.having("class")
    assert [classes.count(kind) for kind in ("thought", "action", "text", "prompt")] == [1, 1, 2, 3]
    assert page.having("style") == ["width: 20.0%", "width: 50.0%"], "half the track is the largest on the page"
    assert [attributes["class"] for tag, attributes in page.elements if tag == "i"] == ["good", "bad"]


@pytest.mark.parametrize(
    "observation",
    [
        "WebShop [SEP] Instruction: [SEP] i need a stool, below 40 dollars [SEP] Search",
        "WebShop\nInstruction: \ni need a stool, below 40 dollars\n[button] Search [button_]\n",
    ],
)
def test_a_shops_instruction_and_score(path, observation):
    shopping = episode(turn(observation=observation), turn(observation="bought"), score=2 / 3)
    page = read(path, shopping)
    assert "1. i need a stool, below 40 dollars lost · score 66.7 · return 0" in " ".join(page.text.split())


def test_the_table_leads_to_the_episodes(path):
    page = read(path, *[episode(episode=i) for i in range(3)])
    targets = [link.removeprefix("#") for link in page.having("href")]
    assert targets == page.having("id") == ["episode-1", "episode-2", "episode-3"]
    assert not {"column-goal", "column-type"} & set(page.having("class")), "nobody has any"


def test_whatever_a_policy_says_stays_text(path):
    evil = '</div></details><script>alert(1)</script><img src=x onerror="a()">&amp;"\'<!-- '
    strange = turn(
        f"<think>{evil}</think>{evil}<action>{evil}</action>{evil}", observation=evil, prompt=evil, advantage=0.0
    )
    page = read(path, episode(strange, task_type=evil, split=evil), title=evil)
    assert {tag for tag, _ in page.elements}.isdisjoint({"script", "img"})
    assert not page.having("onerror")
    assert "".join(page.words).count(evil.strip()) == 13
    assert evil in "".join(page.words)


def test_characters_that_html_does_not_allow(path):
    page = read(path, episode(turn("a\x00b\ud800c\x1b[31md\x7fe\tf\ng")))
    assert "a�b�c�[31md�e f g" in page.text


def test_nothing_comes_from_outside(path):
    read(path, episode(turn(advantage=1.0, group_sizes=[1])))
    html = path.read_text()
    assert not re.search(r"https?:|//|url\(|@import|<link|<script|<iframe|\bsrc=", html)
    assert "default-src 'none'" in html
    assert "prefers-color-scheme: dark" in html
    assert 'name="viewport" content="width=device-width' in html


def test_no_episodes_no_turns_and_nothing_said(path):
    assert "No episodes." in read(path).text
    page = read(path, episode(turns=[]), episode(turn("")))
    assert "0 steps" in page.text
    assert "an empty reply" in page.text
    assert "advantage" not in page.text
    assert "Groups" not in page.text


@pytest.mark.parametrize(
    ("reply", "parts"),
    [
        ("go up", [("text", "go up")]),
        ("<think>a</think><action>b</action>", [("thought", "a"), ("action", "b")]),
        ("<THINK>a\nb</Think> <Action>\nc </ACTION> d", [("thought", "a\nb"), ("action", "c"), ("text", "d")]),
        ("<think>a<action>b</action>", [("text", "<think>a"), ("action", "b")]),
        ("</action><action>b</action>", [("text", "</action><action>b</action>")]),
        ("<action>a</action><action>b</action>", [("action", "a"), ("text", "<action>b</action>")]),
        ("<think></think><action></action>", [("action", "")]),
        (" \n", []),
    ],
)
def test_thought_and_action_are_told_apart(reply, parts):
    assert list(reply_parts(reply)) == parts


@pytest.mark.parametrize(
    "reply", ["<act\u0130on>look</action>", "<action>look</act\u0131on>", "<thin\u212a>look</think>"]
)
def test_letters_that_only_look_like_those_of_a_tag_are_text(reply):
    assert list(reply_parts(reply)) == [("text", reply)]
    assert not parse_reply(reply)[1], "nor does the environment find one"


def batch_of(states, rewards):
    """One prompt group, a trajectory a row; the last step ends it."""
    trajectory = np.repeat(np.arange(len(states)), [len(row) for row in states])
    step = np.concatenate([np.arange(len(row)) for row in states])
    last = np.append(np.diff(trajectory) > 0, True)
    n = len(trajectory)
    return Trajectories(
        anchor_state=np.array([state for row in states for state in row], object),
        prompt_group=np.zeros(n, int),
        trajectory=trajectory,
        step=step,
        reward=np.where(last, np.repeat(rewards, [len(row) for row in states]), 0).astype(np.float32),
        terminated=last,
        truncated=np.zeros(n, bool),
        action_valid=np.ones(n, bool),
        prompt_tokens=[np.ones(1, int)] * n,
        response_tokens=[np.ones(1, int)] * n,
        behavior_logprob=[np.zeros(1)] * n,
    )


def episodes_of(batch):
    counts = np.bincount(batch.trajectory)
    return [episode(*[turn() for _ in range(count)], episode=i) for i, count in enumerate(counts)]


def advantages(annotated):
    return [np.nan if turn.advantage is None else turn.advantage for turn in annotated.turns]


def config(**changes) -> RunConfig:
    return dataclasses.replace(load_config("frozen_lake"), **changes)


def test_advantages_and_sizes_of_a_batch():
    batch = batch_of(["AB", "AB", "CB"], [1.0, 0.0, 0.0])
    settings = HGPOConfig(context_length=1, alpha=0.0, normalize_std=False)
    ours = annotate(config(estimator="hgpo", hgpo=settings), batch, episodes_of(batch))
    assert [[t.group_sizes for t in e.turns] for e in ours] == [[[2, 0], [3, 2]]] * 2 + [[[1, 0], [3, 1]]]
    # Returns of the first steps .95, 0, 0 and of the last ones 1, 0, 0; those who share B: mean 1/3, after A: 1/2.
    expected = [[0.95 / 2, (2 / 3 + 1 / 2) / 2], [-0.95 / 2, (-1 / 3 - 1 / 2) / 2], [0, -1 / 3]]
    assert [advantages(e) for e in ours] == [pytest.approx(row) for row in expected]
    assert [e.episode for e in ours] == [0, 1, 2]


def test_the_levels_begin_where_the_estimator_begins():
    batch = batch_of(["AB", "AB", "CB"], [1.0, 0.0, 0.0])
    rooted = config(estimator="hgpo", hgpo=HGPOConfig(context_length=1, root="prompt"))
    ours = annotate(rooted, batch, episodes_of(batch))
    assert [t.group_sizes for t in ours[2].turns] == [[6, 1, 0], [6, 3, 1]]
    ours = annotate(config(estimator="grpo"), batch, episodes_of(batch))
    assert [t.group_sizes for t in ours[2].turns] == [[1], [3]]
    assert advantages(ours[0])[0] > 0 > advantages(ours[1])[0]


def test_single_rollouts_are_annotated_without_a_warning():
    batch = batch_of(["ABA"], [1.0])
    (ours,) = annotate(config(estimator="gigpo"), batch, episodes_of(batch))
    assert [t.group_sizes for t in ours.turns] == [[2], [1], [2]]


def test_steps_in_any_order():
    batch = batch_of(["AB", "AB", "CBA"], [1.0, 0.0, 0.0])
    mixed = np.random.default_rng(0).permutation(batch.num_steps)
    names = ("anchor_state", "prompt_group", "trajectory", "step", "reward", "terminated", "truncated", "action_valid")
    shuffled = dataclasses.replace(batch, **{name: getattr(batch, name)[mixed] for name in names})
    assert annotate(config(), shuffled, episodes_of(batch)) == annotate(config(), batch, episodes_of(batch))


def test_episodes_of_another_batch():
    batch = batch_of(["AB", "AB"], [1.0, 0.0])
    with pytest.raises(ValueError, match=r"1 episodes of 2 turns are not the batch's 2 trajectories of 4 steps"):
        annotate(config(), batch, episodes_of(batch)[:1])
