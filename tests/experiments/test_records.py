"""A run's files are never lost, whenever it is killed."""

import inspect
from pathlib import Path

import pytest

from experiments import evaluate, records, train
from experiments.records import Records, replace_text


def test_resuming_keeps_the_rows_up_to_the_checkpoint(tmp_path: Path) -> None:
    first = Records(tmp_path)
    for iteration in range(4):
        first.add(iteration, {"loss": iteration / 2})
    first.close()
    again = Records(tmp_path, resume_at=2)
    again.close()
    assert [row["iteration"] for row in again.read()] == [0, 1, 2]


def test_a_kill_while_resuming_loses_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows kept are written beside the old file, and take its place at once or not at all."""
    first = Records(tmp_path)
    first.add(0, {"loss": 1.0})
    first.add(1, {"loss": 0.5})
    first.close()
    before = first.read()
    for name in ("write_text", "replace"):
        with monkeypatch.context() as patched:
            patched.setattr(Path, name, _killed)
            with pytest.raises(KeyboardInterrupt):
                Records(tmp_path, resume_at=1)
        assert first.read() == before


@pytest.mark.parametrize(
    "damage", [b'{"iteration": 1, "los', b"", b"[1]", b"1", b'{"loss": 1.0}', b'{"iteration": "1"}', b"\xff\x00"]
)
def test_a_damaged_line_is_named(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"iteration": 0}\n' + damage + b'\n{"iteration": 2}\n')
    with pytest.raises(ValueError, match=r"metrics\.jsonl, line 2 does not hold an iteration's metrics: restore"):
        Records(tmp_path, writes=False).read()


def test_replace_text(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    for text in ("{}", '{"é": 1}'):
        replace_text(path, text)
        assert path.read_text(encoding="utf-8") == text
    assert list(tmp_path.iterdir()) == [path]


def test_whatever_a_run_rewrites_is_replaced_whole() -> None:
    for module in (train, evaluate, records):
        source = inspect.getsource(module).replace(inspect.getsource(replace_text), "")
        assert ".write_text(" not in source, f"{module.__name__}: use replace_text"


def _killed(*_: object, **__: object) -> None:
    raise KeyboardInterrupt
