"""What the commands say of their options."""

import itertools
import re
from types import ModuleType

import pytest

from experiments import compare, evaluate, sft, train


def descriptions(printed: str) -> list[tuple[str, str]]:
    """(option, description) in the order of the page; "" where an option has none."""
    text = re.sub("[│╭╰─╮╯]+", " ", printed)
    blocks = re.split(r"\n\s+(?=--[a-z])", text)[1:]
    pairs = [re.split(r"\n {5,}| {2,}", block, maxsplit=1) for block in blocks]
    return [(pair[0], " ".join(pair[-1].partition("(default:")[0].split()) if len(pair) > 1 else "") for pair in pairs]


@pytest.mark.parametrize("command", [train, sft, compare, evaluate])
def test_no_option_shows_its_neighbours_description(
    command: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A comment above a field counts for all that follow it without one of their own."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr("sys.argv", ["command", "--help"])
    with pytest.raises(SystemExit) as ended:
        command.main()
    assert ended.value.code == 0
    told = descriptions(capsys.readouterr().out)
    assert len(told) > 20
    assert sum(bool(description) for _, description in told) > 15
    for (option, description), (other, same) in itertools.pairwise(told):
        assert not description or description != same, f"{option} and {other} are described alike: {same}"
