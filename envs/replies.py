"""How a reply carries its action: inside tags, after some thinking. The published runs read both benchmarks so."""

from __future__ import annotations

import re

_CHINESE = re.compile("[一-鿿]")


def read_reply(reply: str, think: bool, tail: int) -> tuple[str, bool]:
    """The action of a reply, in lower case, and whether the reply is valid.

    The action stands between the first ``<action>`` and the first ``</action>``, of any case; where the second comes
    before the first it is empty. Without both tags the last ``tail`` characters are taken, and the reply is invalid. It
    is invalid too, though its action is carried out, when it holds Chinese characters or, with ``think``, lacks one of
    ``<think>`` and ``</think>``.
    """
    text = reply.lower()
    start, end = text.find("<action>"), text.find("</action>")
    if start < 0 or end < 0:
        return text[-tail:], False
    thought = not think or ("<think>" in reply and "</think>" in reply)
    return text[start + len("<action>") : end].strip(), thought and not _CHINESE.search(reply)


def format_reply(action: str, think: bool = True) -> str:
    """A valid reply with this action and no reasoning."""
    return f"{'<think></think>' if think else ''}<action>{action}</action>"
