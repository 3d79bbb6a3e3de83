"""Episodes as one HTML page to read: no scripts, nothing from outside, light and dark, wide and narrow."""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

import numpy as np

from experiments.assembly import signals_of
from experiments.configs import RunConfig
from experiments.records import replace_text
from experiments.transcripts import Episode, Turn
from hgpo_jax.estimators import make_estimator
from hgpo_jax.types import Trajectories

NO_GROUP = 0  # the size at a level that needs more history than the step has
_ANY_CASE = re.IGNORECASE | re.ASCII  # without the latter "i" is also found in a Turkish "İ"


def annotate(config: RunConfig, batch: Trajectories, episodes: Sequence[Episode]) -> list[Episode]:
    """The episodes with each step's advantage by the run's estimator, and the sizes of its groups.

    Args:
      config: for the estimator and the returns.
      batch: whose trajectories, by ascending number, are the episodes.
      episodes: in that order, the turns in the order of the steps.

    Returns:
      New episodes. ``group_sizes`` has a size for each level, the coarsest first: 1 where nobody shares the step's
      state and history, 0 where the level needs more history than the step has.

    Raises:
      ValueError: the batch is of other episodes.
    """
    order = np.lexsort((batch.step, batch.trajectory))
    counts = np.unique(batch.trajectory, return_counts=True)[1].tolist()
    if counts != [len(episode.turns) for episode in episodes]:
        raise ValueError(
            f"{len(episodes)} episodes of {sum(len(e.turns) for e in episodes)} turns are not the batch's "
            f"{len(counts)} trajectories of {sum(counts)} steps: annotate episodes with the batch that they come from"
        )
    with warnings.catch_warnings():
        # Of one rollout a task, as in an evaluation, there is little to compare; the page shows it.
        warnings.filterwarnings("ignore", message=".*hold a single rollout", category=UserWarning)
        signals = signals_of(config, batch)
    advantages: list[float | None] = [None] * batch.num_steps  # an evaluation has no critic's values
    if not config.reads_values or batch.value is not None:
        advantages = np.asarray(make_estimator(config.estimator_config)(signals)[0]).tolist()
    sizes = _group_sizes(config, np.asarray(signals.group_ids), batch)
    steps, annotated = iter(order.tolist()), []
    for episode in episodes:
        turns = [
            dataclasses.replace(turn, advantage=advantages[i], group_sizes=sizes[:, i].tolist())
            for turn, i in zip(episode.turns, steps, strict=False)
        ]
        annotated.append(dataclasses.replace(episode, turns=turns))
    return annotated


def _group_sizes(config: RunConfig, ids_LN: np.ndarray, batch: Trajectories) -> np.ndarray:
    """[L, N], as `annotate` says."""
    states = 1 + np.arange(-len(ids_LN), 0) + config.grouping.context_length
    sizes_LN = np.ones_like(ids_LN)
    for sizes_N, ids_N in zip(sizes_LN, ids_LN, strict=True):
        shared = ids_N >= 0
        sizes_N[shared] = np.bincount(ids_N[shared])[ids_N[shared]]
    return np.where(batch.step[None] >= states[:, None], sizes_LN, NO_GROUP)


def render_html(title: str, episodes: Sequence[Episode], path: Path) -> None:
    """Writes the page, whole or not at all: a table of the episodes, then each with its turns.

    Args:
      title: of the page.
      episodes: in the order of the page. Advantages and group sizes are shown where they are known.
      path: of the file.
    """
    largest = max((abs(turn.advantage or 0) for episode in episodes for turn in episode.turns), default=0)
    body = [f"<h1>{_text(title)}</h1>", _summary(episodes), *[_contents(episodes)] * bool(episodes)]
    body += [_episode(number, episode, largest) for number, episode in enumerate(episodes, 1)]
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, _PAGE.format(title=_text(title), style=_STYLE, body="\n".join(body)))


def reply_parts(reply: str) -> Iterator[tuple[str, str]]:
    """A reply cut into ("thought" | "action" | "text", its text), in order; tags that make no pair stay in the text.

    The action stands between the first ``<action>`` and the first ``</action>``, as the environments read it.
    """
    start, end = (re.search(tag, reply, _ANY_CASE) for tag in ("<action>", "</action>"))
    if start and end and start.end() <= end.start():
        yield from _thoughts(reply[: start.start()])
        yield "action", reply[start.end() : end.start()].strip()
        yield from _thoughts(reply[end.end() :])
    else:
        yield from _thoughts(reply)


def _thoughts(text: str) -> Iterator[tuple[str, str]]:
    for i, part in enumerate(re.split("<think>(.*?)</think>", text, flags=_ANY_CASE | re.DOTALL)):
        if part.strip():
            yield "thought" if i % 2 else "text", part.strip()


def _text(text: object) -> str:
    """Escaped; characters that HTML does not allow are replaced."""
    return escape(re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]", "\N{REPLACEMENT CHARACTER}", str(text)))


def _goal(episode: Episode) -> str:
    """Where the first observation says it in so many words."""
    observation = episode.turns[0].observation if episode.turns else ""
    found = re.search(r"Your task is to: (.*)|Instruction:\s+(?:\[SEP\] )?(.*?)(?: \[SEP\]|\n|$)", observation)
    return (found[1] or found[2] or "") if found else ""


def _outcome(episode: Episode) -> str:
    return '<b class="good">won</b>' if episode.won else '<b class="bad">lost</b>'


def _score(episode: Episode) -> list[str]:
    return [] if episode.score is None else [f"score {100 * episode.score:.1f}"]


def _summary(episodes: Sequence[Episode]) -> str:
    if not episodes:
        return "<p>No episodes.</p>"
    won, count, turns = sum(e.won for e in episodes), len(episodes), [turn for e in episodes for turn in e.turns]
    told = (
        f"{won} of {count} won ({won / count:.1%}); mean return {sum(e.episode_return for e in episodes) / count:.2f}, "
        f"mean length {len(turns) / count:.1f} steps; {sum(not t.valid for t in turns)} of {len(turns)} replies "
        "invalid."
    )
    notes = ""
    if any(turn.group_sizes for turn in turns):
        notes = (
            "<p class=note>Groups: how many steps share a step's state, and as many past states, from the coarsest "
            "level to the finest; 1 is the step alone, – a level that needs more history than the step has.</p>"
        )
    return f"<p>{told}</p>\n{notes}"


def _contents(episodes: Sequence[Episode]) -> str:
    heads = ["", "result", "return", "steps", "task", "goal", "type"]
    rows = [
        [
            f'<a href="#episode-{number}">{number}</a>',
            _outcome(episode),
            f"{episode.episode_return:g}",
            str(len(episode.turns)),
            _task(episode),
            _text(_goal(episode)),
            _text(episode.task_type),
        ]
        for number, episode in enumerate(episodes, 1)
    ]
    told = [i for i in range(len(heads)) if any(row[i] for row in rows)]
    lines = ["".join(f'<th class="column-{heads[i]}">{heads[i]}</th>' for i in told)]
    lines += ["".join(f'<td class="column-{heads[i]}">{row[i]}</td>' for i in told) for row in rows]
    return '<div class="wide"><table>' + "\n".join(f"<tr>{line}</tr>" for line in lines) + "</table></div>"


def _task(episode: Episode) -> str:
    return _text(f"{episode.split} {episode.task}")


def _episode(number: int, episode: Episode, largest: float) -> str:
    facts = [_outcome(episode), *_score(episode), f"return {episode.episode_return:g}", f"{len(episode.turns)} steps"]
    facts.append(_task(episode))
    facts += [_text(episode.task_type)] * bool(episode.task_type)
    facts += [f"seed {episode.seed}", f"episode {episode.episode}"]
    turns = "\n".join(_turn(i, turn, largest) for i, turn in enumerate(episode.turns, 1))
    return (
        f'<section id="episode-{number}"><h2>{number}. {_text(_goal(episode)) or _task(episode)}</h2>\n'
        f"<p>{' · '.join(facts)}</p>\n{turns}\n</section>"
    )


def _turn(i: int, turn: Turn, largest: float) -> str:
    facts = [f"<b>step {i}</b>", "valid" if turn.valid else '<b class="bad">invalid</b>']
    facts.append(f"reward <b>{turn.reward:g}</b>" if turn.reward else "reward 0")
    if turn.advantage is not None:
        facts.append(_advantage(turn.advantage, largest))
    if turn.group_sizes is not None:
        facts.append("groups " + " · ".join("–" if size == NO_GROUP else str(size) for size in turn.group_sizes))
    reply = "\n".join(f'<div class="{kind}">{_text(part)}</div>' for kind, part in reply_parts(turn.reply))
    return (
        f'<article><p class="facts">{"".join(f"<span>{fact}</span>" for fact in facts)}</p>\n'
        f'<div class="seen">{_text(turn.observation)}</div>\n'
        f'<details><summary>prompt, {len(turn.prompt):,} characters</summary><div class="prompt">{_text(turn.prompt)}'
        f"</div></details>\n{reply or '<div class=note>an empty reply</div>'}</article>"
    )


def _advantage(advantage: float, largest: float) -> str:
    """The number, and a bar to the right or left of the middle."""
    share = 50 * abs(advantage) / largest if largest else 0
    side = "bad" if advantage < 0 else "good"
    bar = f'<span class="bar"><i class="{side}" style="width: {share:.1f}%"></i></span>'
    number = f"{advantage:+.3f}".replace("-", "−") if advantage else "0"
    return f"advantage <b>{number}</b> {bar}"


_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
{body}
</body>
</html>
"""

_STYLE = """
:root { color-scheme: light dark; --page: #fff; --text: #1d2126; --faint: #667; --line: #d9dce1; --box: #f4f5f7;
  --action: #e8effc; --good: #12742f; --bad: #b3261e; --link: #1a56b8; }
@media (prefers-color-scheme: dark) { :root { --page: #16181c; --text: #dfe2e6; --faint: #9aa1ab; --line: #343941;
  --box: #1f2329; --action: #22304a; --good: #62c67e; --bad: #ff8a80; --link: #8ab4f8; } }
body { max-width: 52rem; margin: 0 auto; padding: 1rem; background: var(--page); color: var(--text);
  font: 1rem/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-bottom: 0; }
h1, h2 { line-height: 1.25; overflow-wrap: anywhere; }
a { color: var(--link); } .good { color: var(--good); } .bad { color: var(--bad); }
.note, summary, th, .facts { color: var(--faint); font-size: .875rem; }
.facts b:not(.bad) { color: var(--text); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .875rem; }
th, td { padding: .25rem .6rem .25rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
.column-goal, .column-type { min-width: 6.5rem; overflow-wrap: anywhere; }
@media (max-width: 30rem) { .column-type { display: none; } }
section { margin-top: 2.5rem; border-top: 3px solid var(--line);
  content-visibility: auto; contain-intrinsic-size: auto 60rem; }
article { margin: 1rem 0; padding-top: .5rem; border-top: 1px solid var(--line); }
article div { margin: .35rem 0; white-space: pre-wrap; overflow-wrap: anywhere; unicode-bidi: plaintext; }
.facts { display: flex; flex-wrap: wrap; gap: 0 1.2rem; margin: 0; font-variant-numeric: tabular-nums; }
.prompt { padding: .5rem .75rem; background: var(--box); font-size: .875rem; }
.thought, .text { padding-left: .75rem; border-left: 3px solid var(--line); }
.thought { color: var(--faint); font-style: italic; }
.action { padding: .25rem .75rem; background: var(--action); font-family: ui-monospace, monospace; }
.action::before { content: "> "; color: var(--faint); }
summary { cursor: pointer; }
.bar { position: relative; display: inline-block; width: 6rem; height: .6rem; background:
  linear-gradient(var(--faint), var(--faint)) center / 1px 100% no-repeat var(--box); }
.bar i { position: absolute; top: 0; height: 100%; background: currentcolor; }
.bar .good { left: 50%; } .bar .bad { right: 50%; }
"""
