"""The check of recordings: exit codes, damaged files, unknown names, and the two deliberate differences."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from experiments.replay_advantages import TOLERANCE, parse_output
from experiments.verify import main
from hgpo_jax.config import GiGPOConfig, GRPOConfig, HGPOConfig

GOLDEN = Path(__file__).parents[1] / "golden" / "advantages"
QWEN = Path(__file__).parents[1] / "golden" / "qwen"
KEPT = ("hgpo/K=1/alpha=1.0/mean_norm/base=False", "episode_across_steps/mean_std_norm")


@pytest.fixture
def recording():
    """A recorded batch with two of its outputs: quick to replay."""
    with np.load(GOLDEN / "ordered_sparse.npz") as archive:
        return {name: archive[name] for name in archive.files if "/" not in name or name in KEPT}


def verify(directory, capsys, **recordings):
    for name, recording in recordings.items():
        np.savez(directory / f"{name}.npz", **recording)
    code = main(["advantages", str(directory)])
    return code, " ".join(capsys.readouterr().out.split())


def test_a_faithful_recording_passes(tmp_path, capsys, recording):
    code, printed = verify(tmp_path, capsys, good=recording)
    assert code == 0
    assert "good.npz │ 170 │ 4 │" in printed
    assert "ok" in printed


@pytest.mark.parametrize("name", [*KEPT, "discounted_return", "step_return"])
def test_one_value_off_fails(tmp_path, capsys, recording, name):
    changed = recording[name].copy()
    changed[5] += 2 * TOLERANCE * max(1, abs(changed[5]))
    code, printed = verify(tmp_path, capsys, good=recording, bad=recording | {name: changed})
    assert code == 1
    assert f"bad.npz: FAILED: {name}: 1 of 170 values differ, most at step 5" in printed
    assert "good.npz: FAILED" not in printed


def test_relative_differences_pass_and_nan_fails(tmp_path, capsys, recording):
    large = recording["discounted_return"] * np.float32(1 + 1e-5)
    assert verify(tmp_path, capsys, batch=recording | {"discounted_return": large})[0] == 0
    lost = recording[KEPT[0]].copy()
    lost[0] = np.nan
    assert verify(tmp_path, capsys, batch=recording | {KEPT[0]: lost})[0] == 1


def test_nothing_compared_fails(tmp_path, capsys, recording):
    assert "nothing was compared" in verify(tmp_path, capsys)[1]
    assert "no such directory" in verify(tmp_path / "absent", capsys)[1]
    inputs = {name: x for name, x in recording.items() if "/" not in name}
    code, printed = verify(tmp_path, capsys, inputs=inputs)
    assert code == 1
    assert "holds no estimator's output" in printed


@pytest.mark.parametrize("name", ["hgpo/K=1/alpha=1.0/median_norm/base=False", "ppo/mean_norm", "hgpo/K=-1/alpha=1.0"])
def test_unknown_outputs_are_named(tmp_path, capsys, recording, name):
    code, printed = verify(tmp_path, capsys, batch=recording | {name: recording[KEPT[0]]})
    assert code == 1
    assert f"unknown output {name}" in printed


def test_damaged_files_are_named(tmp_path, capsys, recording):
    np.savez(tmp_path / "cut.npz", **recording)
    whole = (tmp_path / "cut.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.npz").write_text("not an archive")
    (tmp_path / "flipped.npz").write_bytes(whole[:3000] + b"\xff" * 64 + whole[3064:])
    with (tmp_path / "array.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    broken = {
        "lacking": {name: x for name, x in recording.items() if name != "gamma"},
        "short": recording | {KEPT[0]: recording[KEPT[0]][1:]},
        "pickled": recording | {"state": recording["state"].astype(object)},
        "torn": recording | {"group": np.arange(170)},
        "vector": recording | {"gamma": np.full(2, 0.95)},
        "words": recording | {KEPT[0]: np.full(170, "x")},
        "scalar": recording | {"reward": np.float32(0)},
        "unfinished": recording | {"reward": np.full(170, np.nan, np.float32)},
    }
    code, printed = verify(tmp_path, capsys, **broken)
    assert code == 1
    for name in ("cut", "text", "flipped", "array", *broken):
        assert f"{name}.npz: FAILED: damaged:" in printed


def test_a_depth_beyond_the_recording_is_named(tmp_path, capsys, recording):
    name = "hgpo/K=99999999/alpha=1.0/mean_norm/base=False"
    code, printed = verify(tmp_path, capsys, batch=recording | {name: recording[KEPT[0]]})
    assert code == 1
    assert f"{name}: K is beyond the 170 steps" in printed


def test_names_become_settings():
    assert parse_output("hgpo/K=12/alpha=0.25/mean_norm/base=True") == HGPOConfig(12, 0.25, False, 2, True)
    assert parse_output("gigpo/w=2/mean_std_norm") == GiGPOConfig(2.0, True)
    assert parse_output("episode_across_trajectories/mean_norm") == GRPOConfig(False, over="trajectories")
    assert parse_output("hgpo/K=1/alpha=x/mean_norm/base=True") is None


def single_step_batch(states, returns, **outputs):
    """Rollouts of one step each, one task unless told otherwise."""
    steps = len(returns)
    returns = np.array(returns, np.float32)
    inputs = {
        "state": np.array(list(states)),
        "group": np.zeros(steps, np.int32),
        "trajectory": np.arange(steps, dtype=np.int32),
        "reward": returns,
        "action_valid": np.ones(steps, bool),
        "gamma": np.float32(0.95),
    }
    return inputs | {"discounted_return": returns, "step_return": returns} | outputs


def test_raw_scores_of_single_step_groups_are_told_apart(tmp_path, capsys):
    batch = single_step_batch("xyz", [4, 2, 7])
    batch["group"] = np.array([0, 0, 1], np.int32)
    for name, alone in {
        "episode_across_steps/mean_norm": 7,
        "episode_across_trajectories/mean_norm": 7,
    }.items():
        batch[name] = np.array([1, -1, alone], np.float32)
    batch["gigpo/w=1.0/mean_norm"] = np.array([1, -1, 7], np.float32)
    batch["hgpo/K=0/alpha=1.0/mean_norm/base=True"] = np.array([1, -1, 7], np.float32)
    code, printed = verify(tmp_path, capsys, batch=batch)
    assert code == 0
    assert "4 values differ on purpose: a prompt group with a single step" in printed
    batch["gigpo/w=1.0/mean_norm"] = np.array([1, -1, 6], np.float32)
    assert verify(tmp_path, capsys, batch=batch)[0] == 1


def test_residues_of_equal_returns_are_told_apart(tmp_path, capsys):
    """Three equal returns in state x leave a residue d of 1 ulp there, 2^-20; here it is exactly 0."""
    returns = [9.9, 9.9, 9.9, 1.0]
    d = 2.0**-20
    in_itself, in_nothing, unbiased = d / (d + 1e-6), d / 1e-6, d / (d * 1.5**0.5 + 1e-6)
    deviation = np.array(returns) - np.mean(returns)
    episode = deviation / np.std(returns, ddof=1)
    batch = single_step_batch("xxxy", returns)

    def with_residue(residue, weight):  # the episode weighs 1, state x ``weight``; state y has no group
        return np.append((episode[:3] + weight * residue) / (1 + weight), episode[3])

    k0 = "hgpo/K=0/alpha=1.0"
    for values in (
        {f"{k0}/mean_std_norm/base=False": np.array([in_itself] * 3 + [0])},
        {f"{k0}/mean_std_norm/base=False": np.array([-in_nothing] * 3 + [0])},
        {f"{k0}/mean_std_norm/base=True": with_residue(in_itself, 2)},
        {f"{k0}/mean_norm/base=True": deviation / [3, 3, 3, 1]},  # too small to see, but takes its full weight
        {"gigpo/w=1.0/mean_std_norm": episode + np.array([unbiased] * 3 + [0])},
        {"gigpo/w=2.0/mean_std_norm": episode + np.array([-2 * in_nothing] * 3 + [0])},
    ):
        recorded = {name: value.astype(np.float32) for name, value in values.items()}
        code, printed = verify(tmp_path, capsys, batch=batch | recorded)
        assert code == 0, printed
        assert "3 values differ on purpose: a step on the mean" in printed
        for i, change in ((0, 1e-2), (1, -1e-3), (3, 1e-3)):  # anything but such a residue fails, y's value as well
            changed = {name: value + np.float32(change) * (np.arange(4) == i) for name, value in recorded.items()}
            assert verify(tmp_path, capsys, batch=batch | changed)[0] == 1


def test_a_value_beside_the_mean_of_unequal_returns_fails(tmp_path, capsys):
    """The middle of 9, 10, 11 has advantage 0 at its level; a standard deviation of 0.8 leaves no room for more."""
    batch = single_step_batch("xxx", [9.0, 10.0, 11.0])
    name = "hgpo/K=0/alpha=1.0/mean_std_norm/base=False"
    right = np.array([-(1.5**0.5), 0, 1.5**0.5], np.float32)
    assert verify(tmp_path, capsys, batch=batch | {name: right})[0] == 0
    assert verify(tmp_path, capsys, batch=batch | {name: right + np.array([0, 1e-3, 0], np.float32)})[0] == 1


@pytest.fixture
def checkpoint(tmp_path):
    """A checkpoint whose two shortest prompts were recorded, in a folder of its own."""
    folder = Path(shutil.copytree(QWEN / "qwen2_tied", tmp_path / "model"))
    with np.load(folder / "expected.npz") as archive:
        recorded = {f"{k}{j}": archive[f"{k}{i}"] for j, i in enumerate((0, 2)) for k in ("ids", "logits", "greedy")}
    return folder, recorded


def verify_checkpoint(folder, capsys, recorded=None):
    if recorded is not None:
        np.savez(folder / "expected.npz", **recorded)
    code = main(["checkpoint", str(folder)])
    return code, " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
def test_a_checkpoint_as_transformers_computed_it_passes(checkpoint, capsys):
    """Also where generation stopped at an end token, 2 or 0 here, and padded the rest."""
    folder, recorded = checkpoint
    end = recorded["greedy0"][3]
    (folder / "generation_config.json").write_text(f'{{"eos_token_id": [{end}, 0], "pad_token_id": 9}}')
    recorded["greedy0"] = np.append(recorded["greedy0"][:4], [9, 9, 9])
    assert end not in recorded["greedy0"][:3]
    code, printed = verify_checkpoint(folder, capsys, recorded)
    assert code == 0
    assert "68 of 68 greedy tokens matched" in printed
    assert "│ 0 │ 3 │" in printed
    assert "4 of 4 │ ok" in printed


@pytest.mark.slow
def test_a_checkpoint_that_is_off_fails(checkpoint, capsys):
    folder, recorded = checkpoint
    for i, name in enumerate(("ids", "logits", "greedy") * 3, 3):
        recorded[f"{name}{i // 3 + 1}"] = recorded[f"{name}0"].copy()
    recorded["logits2"][1, 7] += 3e-4
    recorded["logits3"][1, 7] = np.nan
    recorded["greedy4"][40] += 1
    code, printed = verify_checkpoint(folder, capsys, recorded)
    assert code == 1
    for row in (
        "2 │ 3 │ 3.0",
        "3 │ 3 │ nan │ 64 of 64 │ FAILED",
        "FAILED: worst logit difference nan, 319 of 320 greedy",
    ):
        assert row in printed
    assert "63 of 64 │ FAILED" in printed
    assert printed.count("│ ok") == 2


def test_checkpoints_with_nothing_to_compare_fail(checkpoint, capsys):
    folder, recorded = checkpoint
    assert "is no folder: name a Hugging Face checkpoint" in verify_checkpoint(folder / "absent", capsys)[1]
    cases = {
        "it holds no ids0, logits0, greedy0; nothing to compare": {"x": np.zeros(3)},
        "it lacks greedy1": {name: x for name, x in recorded.items() if name != "greedy1"},
        "it lacks ids7, logits7": recorded | {"greedy7": np.zeros(3, int)},
        "ids0 is int64 (0,), expected token ids [n]": recorded | {"ids0": np.zeros(0, int)},
        "greedy0 is float64 (3,), expected token ids": recorded | {"greedy0": np.zeros(3)},
        "ids1 has ids outside the vocabulary of 288": recorded | {"ids1": np.full(8, 288)},
        "logits0 is float32 (8, 288), expected floats (3, 288)": recorded | {"logits0": recorded["logits1"]},
    }
    for message, changed in cases.items():
        code, printed = verify_checkpoint(folder, capsys, changed)
        assert code == 1
        assert f"expected.npz is damaged: {message}" in printed
    path = folder / "expected.npz"
    path.write_bytes(path.read_bytes()[:-50])
    assert "expected.npz is damaged: " in verify_checkpoint(folder, capsys)[1]
    path.unlink()
    assert "expected.npz is missing: " in verify_checkpoint(folder, capsys)[1]
    (folder / "config.json").unlink()
    code, printed = verify_checkpoint(folder, capsys, recorded)
    assert (code, "config.json is missing" in printed) == (1, True)


def test_a_checkpoint_that_does_not_load_fails(checkpoint, capsys):
    folder, recorded = checkpoint
    (folder / "model-00003-of-00003.safetensors").write_bytes(b"")
    code, printed = verify_checkpoint(folder, capsys, recorded)
    assert code == 1
    assert "FAILED: " in printed
    assert "model-00003-of-00003.safetensors is damaged" in printed
