"""Prompts word for word, and how replies are read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.alfworld.protocol import PromptStyle, check_style, format_prompt, parse_reply
from envs.replies import format_reply

INTRO = (
    "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. Looking quickly around you, you see "
    "a desk 1, and a shelf 1.\n\nYour task is to: put some pen on shelf."
)
ARRIVED = "You arrive at desk 1. On the desk 1, you see a pen 1."
PUBLISHED = PromptStyle()
COMMANDS = ("examine desk 1", "go to shelf 1", "help", "inventory", "look", "take pen 1 from desk 1")


def info(step, style=PUBLISHED, commands=COMMANDS):
    return {"step": step, "goal": "put some pen on shelf.", "admissible_commands": commands, "style": style}


def test_the_first_prompt_word_for_word():
    assert format_prompt(INTRO, [], info(0, commands=("go to desk 1", "help", "look"))) == (
        "You act in the ALFRED household, a world told in words.\n"
        f"You now observe: {INTRO}\n"
        "Actions that are possible here:\n"
        "['go to desk 1'\n'look']\n"
        "First reason step by step about where you are and what to do next, inside <think> </think> tags. "
        "Then choose one of the possible actions and give it inside <action> </action> tags."
    )


def test_a_later_prompt_numbers_what_came_before():
    history = [("You close it.", "open desk 1"), ("Nothing happens.", "go to shelf 9")]
    assert format_prompt(ARRIVED, history, info(7)) == (
        "You act in the ALFRED household, a world told in words.\n"
        "Your task: put some pen on shelf.\n"
        "Actions taken so far: 7. The last 2 observations and what you did then:\n"
        "[Observation 6: 'You close it.', Action 6: 'open desk 1']\n"
        "[Observation 7: 'Nothing happens.', Action 7: 'go to shelf 9']\n"
        f"This is step 8. You now observe: {ARRIVED}\n"
        "Actions that are possible here:\n"
        "['examine desk 1'\n'go to shelf 1'\n'inventory'\n'look'\n'take pen 1 from desk 1']\n"
        "First reason step by step about where you are and what to do next, inside <think> </think> tags. "
        "Then choose one of the possible actions and give it inside <action> </action> tags."
    )


def test_without_thoughts_or_list():
    prompt = format_prompt(ARRIVED, [], info(3, PromptStyle(think=False, actions="none")))
    assert prompt.endswith(f"You now observe: {ARRIVED}\nGive one action inside <action> </action> tags.")
    prompt = format_prompt(ARRIVED, [], info(3, PromptStyle(think=False, actions="short")))
    assert "here:\n['go to shelf 1'\n'take pen 1 from desk 1']\nChoose one of the possible actions" in prompt


def test_the_brief_prompt_word_for_word():
    style = PromptStyle(think=False, actions="short", wording="brief")
    assert format_prompt(ARRIVED, [(INTRO, "go to desk 1")], info(1, style)) == (
        "task put some pen on shelf.\n"
        "before You are in the middle of a room. Looking quickly around you, you see a desk 1, and a shelf 1.\n"
        "you go to desk 1\n"
        f"now {ARRIVED}\n"
        "can go to shelf 1, take pen 1 from desk 1\n"
        "you"
    )
    style = PromptStyle(actions="none", wording="brief")
    assert format_prompt(ARRIVED, [], info(1, style)) == f"task put some pen on shelf.\nnow {ARRIVED}\nyou"


@pytest.mark.parametrize(
    ("reply", "action", "valid"),
    [
        ("<think>the pen</think><action>go to desk 1</action>", "go to desk 1", True),
        ("<think></think>\n<action>  Take Pen 1 from desk 1\n</action> done", "take pen 1 from desk 1", True),
        ("<think>a</think><ACTION>look</Action>", "look", True),  # tags of actions in any case
        ("<THINK>a</THINK><action>look</action>", "look", False),  # those of thoughts as written
        ("<action>look</action>", "look", False),
        ("<think><action>look</action>", "look", False),
        ("</think><action>look</action><think>", "look", True),  # looked for, not matched
        ("<think>a</think><action>look</action><action>go</action>", "look", True),
        ("<think>a</think></action><action>look", "", True),
        ("<think>a</think><action></action>", "", True),
        ("<think>a</think><action>fly to the moon</action>", "fly to the moon", True),  # well formed
        ("<think>去</think><action>look</action>", "look", False),
        ("<think>ünïcödé</think><action>look</action>", "look", True),
        ("go to desk 1", "go to desk 1", False),
        ("<think>a</think><action>go to the very next shelf 1", "tion>go to the very next shelf 1"[-30:], False),
        ("", "", False),
    ],
)
def test_reading_a_reply(reply, action, valid):
    assert parse_reply(reply) == (action, valid)


def test_thoughts_may_be_left_out():
    assert parse_reply("<action>look</action>", think=False) == ("look", True)
    assert parse_reply("look", think=False) == ("look", False)
    assert parse_reply("<action>look 看</action>", think=False) == ("look 看", False)


@given(st.text(max_size=200), st.booleans())
def test_any_text_is_read(reply, think):
    action, valid = parse_reply(reply, think)
    assert isinstance(valid, bool)
    assert valid or len(action) <= max(30, len(reply.lower()))


@pytest.mark.parametrize("think", [True, False])
def test_what_is_written_is_read(think):
    assert parse_reply(format_reply("use desklamp 1", think), think) == ("use desklamp 1", True)


def test_a_reply_of_ten_thousand_characters():
    assert parse_reply("x" * 10_000) == ("x" * 30, False)
    assert parse_reply(f"<think>{'x' * 10_000}</think><action>look</action>") == ("look", True)


@pytest.mark.parametrize(
    ("style", "message"),
    [
        (PromptStyle(actions="all"), "the option actions is 'all', expected one of listed, short, none"),  # pyright: ignore
        (PromptStyle(wording="long"), "the option prompt is 'long', expected one of full, brief"),  # pyright: ignore
    ],
)
def test_unknown_styles(style, message):
    with pytest.raises(ValueError, match=message):
        check_style(style)
