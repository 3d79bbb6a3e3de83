"""The check of recorded WebShop sessions: faithful ones pass, every kind of difference and damage is shown."""

import gzip
import json
import math
from pathlib import Path

import pytest

from envs.webshop import nouns
from envs.webshop.catalogue import load_catalogue
from envs.webshop.engine import Session, Shop
from envs.webshop.goals import make_goals
from envs.webshop.pages import Mode
from experiments.verify import main

GOLDEN = Path(__file__).parents[1] / "golden" / "webshop"  # recorded from the original code and from Lucene 8.11
ACTIONS = ("search[oak stool]", "click[b1]", "click[red]", "click[description]", "click[< prev]", "click[buy now]")


def make_files(folder):
    options = {"Color": [{"value": "Red"}, {"value": "Blue"}]}
    common = {"full_description": "A seat.", "small_description": ["oak"], "category": "garden", "query": "stools"}
    common |= {"product_category": "Home › Stools", "customization_options": options, "images": ["x.jpg"]}
    items = [
        common | {"asin": "B1", "name": "Oak stool", "pricing": "$10.00 - $20.00"},
        common | {"asin": "B2", "name": "Iron stool", "pricing": "$30.00"},
    ]
    (folder / "items_shuffle_2.json").write_text(json.dumps(items))
    marks = {"attributes": ["oak"], "instruction": "buy an oak stool", "instruction_attributes": ["oak"]}
    (folder / "items_ins_v2_2.json").write_text(json.dumps({"B1": marks}))
    human = {"instruction": "a stool.", "instruction_attributes": ["oak"], "instruction_options": ["red"]}
    (folder / "items_human_ins.json").write_text(json.dumps({"B1": [human]}))
    (folder / "nouns.json").write_text(json.dumps({"B1": ["stool"], "B2": ["stool"]}))
    # One document of one word: idf ln(1 + .5 / 1.5) = 0.2877, times 1 - 1 / (1 + 1 / 0.9) = 0.5263.
    (folder / "search_documents.jsonl").write_text('{"id": "B1", "contents": "oak"}\n')
    lines = ['{"query": "an oak", "hits": [["B1", 0.1514]]}', '{"query": "iron", "hits": []}']
    (folder / "search_results.jsonl").write_text("\n".join(lines))


def make_transcripts(folder):
    """What the native shop does, in the form of a recording."""
    human = folder / "items_human_ins.json"
    catalogue = load_catalogue(folder / "items_shuffle_2.json", folder / "items_ins_v2_2.json", human)
    lines = []
    sections: list[tuple[bool, Mode]] = [(False, "text"), (True, "text"), (False, "text_rich")]
    for with_people, mode in sections:
        goals = make_goals(catalogue, human=with_people)
        shop = Shop(catalogue, goals, nouns.cached(folder / "nouns.json"), mode=mode)
        prices = {product.asin: product.price for product in catalogue.products}
        meta = {"human_goals": with_people, "mode": mode, "prices": prices, "goals": [as_recorded(g) for g in goals]}
        lines.append({"meta": meta})
        session = Session(shop, 0)
        steps = [{"a": None, "obs": session.observation, "av": session.available_actions}]
        for action in ACTIONS:
            reward, done = session.step(action)
            seen = {"obs": session.observation, "av": session.available_actions, "url": session.url}
            steps.append({"a": action, "r": reward, "d": done, **seen})
        assert session.state.purchase
        steps[-1]["info"] = session.state.purchase.details()
        lines.append({"goal_idx": 0, "steps": steps})
    return lines


def as_recorded(goal):
    fields = {name: getattr(goal, name) for name in ("asin", "category", "query", "name", "product_category")}
    options = goal.options if isinstance(goal.options, dict) else list(goal.options)
    texts = {"instruction_text": goal.instruction, "attributes": list(goal.attributes), "goal_options": options}
    return fields | texts | {"price_upper": goal.price_upper, "weight": 1}


@pytest.fixture
def recording(tmp_path):
    make_files(tmp_path)
    return make_transcripts(tmp_path)


@pytest.fixture
def verify(tmp_path, recording, capsys):
    def run(*options):
        lines = (line if isinstance(line, str) else json.dumps(line) for line in recording)
        (tmp_path / "transcripts.jsonl").write_text("\n".join(lines))
        code = main(["webshop", str(tmp_path), *options])
        return code, capsys.readouterr().out

    return run


def test_a_faithful_recording_matches(verify):
    code, printed = verify()
    assert code == 0
    assert printed.splitlines() == [
        "synthetic goals, text: prices: 2 of 2 matched",
        "synthetic goals, text: goals: 2 of 2 matched",
        "synthetic goals, text: steps: 7 of 7 matched",
        "human goals, text: prices: 2 of 2 matched",
        "human goals, text: goals: 1 of 1 matched",
        "human goals, text: steps: 7 of 7 matched",
        "synthetic goals, text_rich: prices: 2 of 2 matched",
        "synthetic goals, text_rich: goals: 2 of 2 matched",
        "synthetic goals, text_rich: steps: 7 of 7 matched",
        "search: queries: 2 of 2 matched",
    ]


def test_the_original_and_lucene_are_matched(tmp_path, capsys):
    for packed in GOLDEN.glob("*.gz"):
        (tmp_path / packed.stem).write_bytes(gzip.decompress(packed.read_bytes()))
    main(["webshop", str(tmp_path)])
    said = capsys.readouterr().out
    assert "search: queries: 150 of 150 matched" in said
    assert [line.split("steps: ")[1] for line in said.splitlines() if "steps: " in line] == [
        "373 of 373 matched",
        "185 of 185 matched",
        "117 of 117 matched",
    ]


def test_the_first_difference_is_shown_where_it_is(verify, recording):
    steps = recording[1]["steps"]
    steps[2]["obs"] = steps[2]["obs"].replace("Rating: N.A.", "Rating: 5")
    steps[5]["r"] = 1.0
    code, printed = verify()
    assert code == 1
    assert "synthetic goals, text: steps: 5 of 7 matched" in printed
    assert "FAILED: synthetic goals, text, episode 1 (goal 0), step 2, action 'click[b1]': obs: expected '" in printed
    assert "Rating: 5 [SEP]" in printed
    assert "step 5" not in printed
    assert "Back to Search" not in printed  # far from the difference
    assert "Back to Search" in verify("--show")[1]


@pytest.mark.parametrize(
    ("step", "field", "value"),
    [
        (0, "obs", "WebShop"),
        (0, "av", {"has_search_bar": False, "clickables": ["search"]}),
        (1, "url", "http://127.0.0.1:3000/0"),
        (4, "d", True),
        (6, "r", 0.125),
        (6, "info", {"r_type": 1.0}),
    ],
)
def test_every_field_of_a_step_counts(verify, recording, step, field, value):
    recording[3]["steps"][step][field] = value
    code, printed = verify()
    assert code == 1
    assert "human goals, text: steps: 6 of 7 matched" in printed
    assert f"step {step}, " in printed
    assert f": {field}: expected " in printed


def test_prices_and_goals_count(verify, recording):
    recording[0]["meta"]["prices"] |= {"B2": 31.0, "B3": 1.0}
    recording[2]["meta"]["goals"][0]["goal_options"] = ["blue"]
    recording[4]["meta"]["goals"].append(recording[4]["meta"]["goals"][0])
    code, printed = verify()
    assert code == 1
    assert "synthetic goals, text: prices: 1 of 3 matched\n" in printed
    assert "FAILED: synthetic goals, text, B2: price: expected 31.0, got 30.0" in printed
    assert "human goals, text: goals: 0 of 1 matched" in printed
    assert "FAILED: human goals, text, goal 0: goal_options: expected ['blue'], got ['red']" in printed
    assert "synthetic goals, text_rich: goals: 2 of 3 matched" in printed
    assert "text_rich, goal 2: asin: expected 'B1', got None" in printed


@pytest.mark.parametrize(
    ("hits", "difference"),
    [
        ([["B2", 0.1514]], "hit 0: expected ('B2', 0.1514), got ('B1', 0.15"),
        ([["B1", 0.1517]], "hit 0: expected ('B1', 0.1517), got ('B1', 0.15"),
        ([["B1", math.nan]], "hit 0: expected ('B1', nan), got ('B1', 0.15"),
        ([["B1", 0.1514], ["B2", 0.1]], "hit 1: expected ('B2', 0.1), got None"),
        ([], "hit 0: expected None, got ('B1', 0.15"),
    ],
)
def test_hits_their_order_and_scores_count(tmp_path, verify, hits, difference):
    (tmp_path / "search_results.jsonl").write_text(json.dumps({"query": "oak", "hits": hits}))
    code, printed = verify()
    assert code == 1
    assert "search: queries: 0 of 1 matched" in printed
    assert f"FAILED: query 1, 'oak': {difference}" in printed


@pytest.mark.parametrize(
    ("place", "line", "said"),
    [
        (0, '{"meta": {', "line 1: damaged: JSONDecodeError("),
        (0, {"meta": {"mode": "text"}}, "line 1: damaged: KeyError('human_goals')"),
        (
            0,
            {"meta": {"human_goals": False, "mode": "html", "prices": {}, "goals": []}},
            "line 1: damaged: ValueError(",
        ),
        (0, {"goal_idx": 0, "steps": []}, "line 1: damaged: KeyError('meta')"),
        (1, [], "line 2: damaged: an object expected, got '[]'"),
        (1, {"goal_idx": 99, "steps": []}, "line 2: damaged: ValueError('no goal 99: "),
        (1, {"goal_idx": "0", "steps": []}, "line 2: damaged: TypeError("),
        (1, {"goal_idx": 0, "steps": [{"a": None}]}, "line 2: damaged: KeyError('obs, av')"),
        (1, {"goal_idx": 0, "steps": [{"a": None, "obs": "", "av": {}}, {"a": None}]}, "line 2: damaged: AttributeErr"),
    ],
)
def test_damaged_transcripts_fail_with_one_message(verify, recording, place, line, said):
    recording[place] = line
    code, printed = verify()
    assert code == 1
    assert f"transcripts.jsonl: {said}" in printed.splitlines()[-1]
    assert printed.splitlines()[-1].startswith("FAILED: ")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("search_results.jsonl", '{"query": "oak"}', "search_results.jsonl: line 1: damaged: 'hits' should be a list"),
        (
            "search_results.jsonl",
            '{"query": "oak", "hits": [[1]]}',
            "search_results.jsonl: line 1: damaged: ValueError",
        ),
        (
            "search_results.jsonl",
            '{"query": 3, "hits": []}',
            "search_results.jsonl: line 1: damaged: 'query' should be",
        ),
        ("search_documents.jsonl", b"\xff\xfe", "search_documents.jsonl: 'utf-8' codec can't decode"),
        ("items_shuffle_2.json", "[{]", "items_shuffle_2.json"),
        ("nouns.json", "{", "nouns.json: no JSON file"),
        ("nouns.json", "{}", "nouns.json: no nouns of asin B1"),
        ("nouns.json", None, "should hold one file nouns.json, and holds 0"),
        ("items_shuffle.json", "[]", "should hold one file items_shuffle*.json, and holds 2"),
    ],
)
def test_damaged_or_missing_files_fail_with_one_message(tmp_path, verify, name, content, said):
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    code, printed = verify()
    assert code == 1
    assert said in printed.splitlines()[-1]
    assert sum("FAILED" in line for line in printed.splitlines()) == 1


def test_nothing_to_compare_fails(tmp_path, verify, recording):
    recording.clear()
    (tmp_path / "search_results.jsonl").write_text("\n")
    code, printed = verify()
    assert code == 1
    assert "FAILED: nothing was compared" in printed
