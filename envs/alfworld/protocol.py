"""What the agent is asked and how its reply is read: the published runs' protocol, in our own words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

from envs.core import check_choice
from envs.replies import read_reply

Actions = Literal["listed", "short", "none"]
Wording = Literal["full", "brief"]

WELCOME = "-= Welcome to TextWorld, ALFRED! =-"
_INFORMATIONAL = ("examine ", "inventory", "look")  # change nothing: left out of a short list


class PromptStyle(NamedTuple):
    """How prompts are worded; the published runs have the defaults."""

    think: bool = True  # replies have to reason inside <think> tags
    # Admissible actions: all, without those that change nothing, or no list.
    actions: Actions = "listed"
    wording: Wording = "full"  # "brief": about 200 words, for models that are tiny or trained from scratch


def check_style(style: PromptStyle) -> PromptStyle:
    """Returns it.

    Raises:
        ValueError: a choice that does not exist.
    """
    check_choice("actions", style.actions, get_args(Actions))
    check_choice("prompt", style.wording, get_args(Wording))
    return style


def parse_reply(reply: str, think: bool = True) -> tuple[str, bool]:
    """The action and whether the reply is valid (`read_reply`); without tags the last 30 characters are taken."""
    return read_reply(reply, think, tail=30)


def format_prompt(observation: str, history: Sequence[tuple[str, str]], info: Mapping[str, Any]) -> str:
    """The user message of a step.

    Args:
        observation: the current one; of the first step the whole introduction.
        history: the last (observation, action) pairs, oldest first.
        info: as `ALFWorld` gives it: ``step`` (actions taken so far), ``goal``, ``admissible_commands``, ``style``.
    """
    style: PromptStyle = info["style"]
    return (_brief if style.wording == "brief" else _full)(observation, history, info, style)


def _full(observation: str, history: Sequence[tuple[str, str]], info: Mapping[str, Any], style: PromptStyle) -> str:
    lines = ["You act in the ALFRED household, a world told in words."]
    step: int = info["step"]
    if history:
        lines += [
            f"Your task: {info['goal']}",
            f"Actions taken so far: {step}. The last {len(history)} observations and what you did then:",
        ]
        numbers = range(step - len(history) + 1, step + 1)
        lines += [
            f"[Observation {n}: '{seen}', Action {n}: '{action}']"
            for n, (seen, action) in zip(numbers, history, strict=True)
        ]
        lines.append(f"This is step {step + 1}. You now observe: {observation}")
    else:
        lines.append(f"You now observe: {observation}")
    if style.actions != "none":
        listed = "\n".join(f"'{command}'" for command in _listed(info["admissible_commands"], style))
        lines.append(f"Actions that are possible here:\n[{listed}]")
    reasoning = "First reason step by step about where you are and what to do next, inside <think> </think> tags. "
    if style.actions == "none":
        end = "Then give one action inside <action> </action> tags."
    else:
        end = "Then choose one of the possible actions and give it inside <action> </action> tags."
    lines.append((reasoning if style.think else "") + (end if style.think else end.removeprefix("Then ").capitalize()))
    return "\n".join(lines)


def _brief(observation: str, history: Sequence[tuple[str, str]], info: Mapping[str, Any], style: PromptStyle) -> str:
    """No instructions, no numbers; the introduction without its welcome and task, which stand in the first line."""
    lines = [f"task {info['goal']}"]
    lines += [f"before {_seen(seen)}\nyou {action}" for seen, action in history]
    lines.append(f"now {_seen(observation)}")
    if style.actions != "none":
        lines.append("can " + ", ".join(_listed(info["admissible_commands"], style)))
    return "\n".join([*lines, "you"])


def _seen(observation: str) -> str:
    text = observation.removeprefix(WELCOME).split("\n\nYour task is to:")[0]
    return " ".join(text.split())


def _listed(commands: Sequence[str], style: PromptStyle) -> list[str]:
    left_out = ("help", *_INFORMATIONAL) if style.actions == "short" else ("help",)
    return [command for command in commands if not command.startswith(left_out)]
