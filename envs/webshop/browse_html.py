"""The shop's pages as HTML for people: what `browse` serves."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from html import escape
from http import HTTPStatus
from typing import TYPE_CHECKING

from envs.webshop.engine import Session, Shop
from envs.webshop.goals import NO_LIMIT, Goal
from envs.webshop.pages import SEARCH, Node
from envs.webshop.reward import DISTANT_TITLE, SIMILAR_TITLE, Reward

if TYPE_CHECKING:
    from envs.webshop.browse import Turn

_NOT_IN_HTML = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")


def goals_page(shop: Shop, about: str, start: int, count: int) -> str:
    """The goals from one on, and ways to the others."""
    goals = shop.goals[start : start + count]
    entries = "\n".join(
        f'<li><a href="/goal?number={number}"><b>{number}</b> {_text(goal.instruction)}</a></li>'
        for number, goal in enumerate(goals, start)
    )
    last = len(shop.goals) - 1
    earlier = f'<a href="/?from={start - count}">earlier</a>' if start else ""
    later = f'<a href="/?from={start + count}">later</a>' if start + count <= last else ""
    return _page(
        "WebShop: goals",
        f"""<h1>WebShop</h1>
<p class="note">{_text(about)}</p>
<form action="/goal" class="row"><label>Goal <input name="number" inputmode="numeric" pattern="[0-9]+" required
placeholder="0 to {last}" aria-label="number of a goal"></label><button>Play</button>
<a class="button" href="/random">One by chance</a></form>
<ul class="goals">
{entries}
</ul>
<p class="row">{earlier}<span>{start} to {start + len(goals) - 1} of {last + 1:,}</span>{later}</p>""",
    )


def play_page(shop: Shop, game: str, turns: Sequence[Turn], session: Session) -> str:
    """A step of a game: the goal, the shop's page, the purchase at the end, what an agent sees, and the steps so far.

    Args:
        shop: where it is played.
        game: its id.
        turns: up to the step.
        session: at the step.
    """
    number, step = session.state.goal, len(turns) - 1
    act = f"/play/{game}/{step}/do"
    parts = [
        f'<nav class="row"><a href="/?from={number}">Goals</a><span>goal {number}, step {step}</span>'
        f'<a href="/goal?number={number}">Start again</a>'
        f'<a href="/goal?number={(number + 1) % len(shop.goals)}">Next goal</a></nav>',
        f'<p class="goal">{_text(session.goal.instruction)}</p>',
    ]
    if session.state.purchase:
        parts.append(_verdict(shop, session, session.state.purchase))
    else:
        parts.append(
            f'<form action="{act}" class="row"><input name="search" required maxlength="1000" aria-label="words to '
            f'search for" value="{_text(session.state.page.query)}"><button>{SEARCH}</button></form>'
        )
    page = f"<main>\n{''.join(_shop_page(session, act))}</main>"
    if session.done:
        page = f"<details><summary>The shop's last page</summary>{page}</details>"
    parts += [page, _agents_view(session), _steps(game, turns), _goal_details(session.goal)]
    return _page(f"WebShop: goal {number}", "\n".join(parts))


def refusal_page(status: HTTPStatus, reason: str) -> str:
    """Why there is nothing to see."""
    return _page(status.phrase, f'<h1>{status.phrase}</h1>\n<p>{_text(reason)}</p>\n<p><a href="/">Goals</a></p>')


def _shop_page(session: Session, act: str) -> Iterator[str]:
    """The nodes after the goal's text, each kind in a row of its own; a listed product with its name and price."""
    nodes, kind = session.nodes, session.state.page.kind
    if kind != "done":  # whose nodes don't have the goal
        nodes = nodes[3 if kind == "index" else 2 :]
    row: list[str] = []
    listing = False
    for node in nodes:
        if node.kind == "text" and kind == "results" and not listing:
            row.append(f"<span>{_text(node.text)}</span>")  # the page's number, between the buttons
        elif node.kind == "text":
            yield from _row(row)
            yield f"<p>{_text(node.text)}</p>\n"
        elif node.kind == "link":
            yield from _row(row)
            yield f"{'</article>' * listing}<article>{_clickable(node, session, act)}\n"
            listing = True
        elif node.text != SEARCH or kind != "index":  # which is the form's button
            row.append(_clickable(node, session, act))
    yield from _row(row)
    yield "</article>\n" * listing


def _row(row: list[str]) -> Iterator[str]:
    if row:
        yield f'<div class="row">{" ".join(row)}</div>\n'
        row.clear()


def _clickable(node: Node, session: Session, act: str) -> str:
    name = node.text if node.kind == "option" else node.text.lower()
    mark = ' aria-current="true"' if node.clicked else ""
    number = session.clickables.index(name)
    return f'<a class="{node.kind}"{mark} href="{act}?click={number}">{_text(node.text) or "(no name)"}</a>'


def _verdict(shop: Shop, session: Session, reward: Reward) -> str:
    """The reward and how it comes about."""
    goal, page = session.goal, session.state.page
    product = shop.catalogue.products[page.products[0]]
    wanted = [f"{name}: {value}" if isinstance(goal.options, dict) else value for name, value in _options(goal)]
    rows = [("kind", f"× {reward.r_type:g}", _kind_in_words(reward))]
    rows += [
        ("attribute", _mark(met), f"“{_text(name)}” {'found' if met else 'not found in attributes, title or texts'}")
        for name, met in zip(goal.attributes, reward.attributes_met, strict=True)
    ]
    rows += [
        ("option", _mark(met), f"“{_text(name)}” {'chosen' if met else 'not chosen'}")
        for name, met in zip(wanted, reward.options_met, strict=True)
    ]
    limit = "no limit was set" if goal.price_upper == NO_LIMIT else f"at most {goal.price_upper:.2f} were allowed"
    rows.append(("price", _mark(reward.r_price), f"{product.price:.2f} dollars; {limit}"))
    met = sum(reward.attributes_met) + sum(reward.options_met) + reward.r_price
    terms = len(reward.attributes_met) + len(reward.options_met) + 1
    chosen = ", ".join(f"{name}: {value}" for name, value in page.chosen.items()) or "no options"
    lines = "\n".join(f"<tr><th>{what}</th><td>{mark}</td><td>{words}</td></tr>" for what, mark, words in rows)
    other = "" if product.asin == goal.asin else f"<p>The product meant was {_text(goal.asin)}, {_text(goal.name)}</p>"
    return f"""<section class="verdict"><h1>Reward {reward.total:g}</h1>
<p>{met} of {terms} points × {reward.r_type:g} for the kind of product. Bought: {_text(product.asin)},
{_text(product.name)} ({_text(chosen)})</p>
{other}
<table>
{lines}
</table></section>"""


def _kind_in_words(reward: Reward) -> str:
    reasons = ["the goal's query"] * reward.query_match + ["two parts or more of its category"] * reward.category_match
    share = f"nouns of the goal's title that this one has: {reward.title_score:.0%}"
    if reward.r_type == 1:
        return f"right: it has {' and '.join(reasons)}; {share}" if reasons else f"right: {share}"
    rule = {
        0.5: f"neither query nor category agree, nor more than {SIMILAR_TITLE:.0%} of the title",
        0.1: f"less than {DISTANT_TITLE:.0%} of the title agree",
        0.0: "nothing of the title agrees",
    }
    return f"another: {rule[reward.r_type]}; {share}"


def _mark(met: bool) -> str:
    return '<b class="good">yes</b>' if met else '<b class="bad">no</b>'


def _options(goal: Goal) -> list[tuple[str, str]]:
    return list(goal.options.items()) if isinstance(goal.options, dict) else [("option", o) for o in goal.options]


def _agents_view(session: Session) -> str:
    actions = session.available_actions
    names = ["search[WORDS]"] * actions["has_search_bar"] + [f"click[{name}]" for name in actions["clickables"]]
    return (
        f'<details><summary>What an agent sees</summary><div class="seen">{_text(session.observation)}</div>'
        f'<div class="seen">{_text(chr(10).join(names)) or "no actions"}</div></details>'
    )


def _steps(game: str, turns: Sequence[Turn]) -> str:
    if len(turns) == 1:
        return ""
    lines = [
        f'<li><a href="/play/{game}/{number}">{_text(turn.action)}</a>{_effect(before, turn)}</li>'
        for number, (before, turn) in enumerate(itertools.pairwise(turns), 1)
    ]
    return f'<details open><summary>Steps</summary><ol class="seen">{"".join(lines)}</ol></details>'


def _effect(before: Turn, after: Turn) -> str:
    unchanged = before.state._replace(steps=after.state.steps) == after.state
    return ' <span class="note">nothing happened</span>' if unchanged else ""


def _goal_details(goal: Goal) -> str:
    limit = "none" if goal.price_upper == NO_LIMIT else f"{goal.price_upper:.2f} dollars"
    rows = [("product", f"{goal.asin}, {goal.name}"), ("query", goal.query), ("category", goal.product_category)]
    rows += [("attribute", attribute) for attribute in goal.attributes] + _options(goal) + [("price limit", limit)]
    lines = "".join(f"<tr><th>{_text(name)}</th><td>{_text(value)}</td></tr>" for name, value in rows)
    return f"<details><summary>The goal's secrets, which an agent doesn't see</summary><table>{lines}</table></details>"


def _text(text: str) -> str:
    """Escaped; characters that HTML does not allow are replaced."""
    return escape(_NOT_IN_HTML.sub("\N{REPLACEMENT CHARACTER}", text))


def _page(title: str, body: str) -> str:
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{_text(title)}</title>
<style>{_STYLE}</style>
</head>
<body>
{body}
</body>
</html>
"""


_STYLE = """
:root { color-scheme: light dark; --page: #fff; --text: #1d2126; --faint: #5c6470; --line: #d9dce1; --box: #f4f5f7;
  --good: #12742f; --bad: #b3261e; --link: #1a56b8; --goal: #fff6dc; }
@media (prefers-color-scheme: dark) { :root { --page: #16181c; --text: #dfe2e6; --faint: #9aa1ab; --line: #3d434c;
  --box: #1f2329; --good: #62c67e; --bad: #ff8a80; --link: #8ab4f8; --goal: #35301f; } }
body { max-width: 46rem; margin: 0 auto; padding: 1rem; background: var(--page); color: var(--text);
  font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.4rem; line-height: 1.25; margin: 0 0 .5rem; }
p { margin: .35rem 0; white-space: pre-wrap; unicode-bidi: plaintext; }
a { color: var(--link); } .good { color: var(--good); } .bad { color: var(--bad); }
.note, summary, th, nav span { color: var(--faint); font-size: .875rem; font-weight: normal; }
.row { display: flex; flex-wrap: wrap; gap: .5rem .8rem; align-items: center; margin: .6rem 0; }
.goal { background: var(--goal); padding: .7rem .9rem; border-radius: .4rem; margin: .8rem 0; }
.goals { list-style: none; padding: 0; } .goals li { border-top: 1px solid var(--line); }
.goals a { display: block; padding: .5rem 0; color: inherit; text-decoration: none; unicode-bidi: plaintext; }
.goals a:hover { background: var(--box); } .goals b { color: var(--link); margin-right: .5rem; }
input { font: inherit; padding: .45rem .6rem; border: 1px solid var(--line); border-radius: .4rem; background:
  var(--page); color: inherit; min-width: 0; }
input[name=search] { flex: 1 1 12rem; } input[name=number] { width: 8rem; }
button, .button, .option { font: inherit; padding: .4rem .8rem; border: 1px solid var(--line); border-radius: .4rem;
  background: var(--box); color: var(--text); text-decoration: none; cursor: pointer; }
button:hover, .button:hover, .option:hover { border-color: var(--link); }
.option { border-radius: 1.2rem; } .option[aria-current] { background: var(--link); color: var(--page); }
main { padding: .4rem 0; } form + main { border-top: 1px solid var(--line); margin-top: .8rem; }
article { border-top: 1px solid var(--line); padding: .6rem 0; } .link { font-weight: 600; }
.link[aria-current] { color: var(--faint); }
.verdict { border: 2px solid var(--line); border-radius: .4rem; padding: .9rem; margin: .8rem 0; }
.verdict p { white-space: normal; }
table { border-collapse: collapse; width: 100%; margin-top: .5rem; }
th, td { padding: .3rem .8rem .3rem 0; text-align: left; vertical-align: top; border-top: 1px solid var(--line); }
td:nth-child(2):not(:last-child) { white-space: nowrap; } th { white-space: nowrap; }
details { border-top: 1px solid var(--line); padding: .6rem 0; } summary { cursor: pointer; }
.seen { white-space: pre-wrap; unicode-bidi: plaintext; background: var(--box); margin: .5rem 0; padding: .6rem .8rem;
  border-radius: .4rem; font: .8125rem/1.5 ui-monospace, monospace; }
ol.seen { padding-left: 2.2rem; white-space: normal; }
"""
