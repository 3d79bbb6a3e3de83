"""The benchmarks' own arithmetic; what they time is not asserted."""

import dataclasses

import numpy as np
import pytest

from experiments.benchmarks import accelerator, update
from hgpo_jax.config import LearnerConfig
from hgpo_jax.learner.packing import pack_steps


@pytest.mark.parametrize("spread", ["uniform", "log-uniform"])
def test_padded_and_packed_hold_the_same_steps(spread):
    benchmark = update.Benchmark(steps=8, prompt_lengths=(3, 40), response_lengths=(1, 9), rows_per_device=2)
    lengths = update.spread_lengths(benchmark, spread)
    assert all(3 <= prompt <= 40 and 1 <= response <= 9 for prompt, response in lengths)
    steps, config = update.draw_steps(lengths), LearnerConfig(8, 2, row_length=49)
    wide, packed = update.padded(steps, config, 49, skip=True), pack_steps(**steps, config=config, seed=0)
    assert wide.tokens.shape == (1, 4, 2, 49)
    assert update.padded(steps, config, 49, skip=False).segment_ids.all()
    assert packed.tokens.size < wide.tokens.size
    for name in ("tokens", "positions", "behavior_logprob"):
        for i in range(8):
            ours, theirs = (getattr(batch, name)[batch.step_index == i] for batch in (packed, wide))
            np.testing.assert_array_equal(ours, theirs)
    for batch in (packed, wide):
        rows = (x.reshape(-1, x.shape[-1]) for x in (batch.response_index, batch.loss_mask))
        for index, mask in zip(*rows, strict=True):
            np.testing.assert_array_equal(index[index >= 0], np.flatnonzero(mask))


@pytest.mark.slow
def test_the_accelerator_script_runs_small(tmp_path, monkeypatch, capsys):
    """All of its parts, on this CPU; the recorded checkpoints have tests of their own."""

    def parity(_):
        return [{"checkpoint": "none", "ok": True}]

    monkeypatch.setattr(accelerator, "parity", parity)
    benchmark = accelerator.Benchmark(tiny=True, repeats=1, json=tmp_path / "figures.json")
    accelerator.main(benchmark)
    shown = capsys.readouterr().out
    for part in ("update", "sampling", "attention", "estimator"):
        assert f"{part} (" in shown
        assert "FAILED" not in shown
    assert (tmp_path / "figures.json").stat().st_size > 100
    assert dataclasses.replace(benchmark, tiny=False).model.hidden_size == 896
