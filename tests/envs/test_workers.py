"""Environments in worker processes: the same results as in one process, whatever happens to the workers."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import gymnasium
import jax
import numpy as np
import pytest

from envs.core import environment_class, make_vector
from envs.workers import ProcessVectorEnv
from experiments.scripted import random_policy, scripted_act
from hgpo_jax.config import RolloutConfig, SamplingConfig
from hgpo_jax.policy.tokenization import ByteTokenizer
from hgpo_jax.rollout.collector import collect

LAKE = "hgpo/FrozenLakeText-v0"
TROUBLED = "tests/Troubled-v0"

gymnasium.register(TROUBLED, "troubled:Troubled")


def reset(vector, slots=None, seed=0, **options):
    mask = np.isin(np.arange(vector.num_envs), range(vector.num_envs) if slots is None else slots)
    return vector.reset(seed=[seed] * vector.num_envs, options=options | {"reset_mask": mask})


def assert_same(ours, theirs):
    """Tuples of strings, arrays and (nested) dicts of these, dtypes included."""
    assert type(ours) is type(theirs)
    if isinstance(ours, np.ndarray):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
    elif isinstance(ours, dict):
        assert list(ours) == list(theirs)
        for name in ours:
            assert_same(ours[name], theirs[name])
    elif isinstance(ours, tuple):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_same(one, other)
    else:
        assert ours == theirs


def gone(pid):
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def assert_gone(pids, seconds=10):
    deadline = time.monotonic() + seconds
    while not all(map(gone, pids)):
        assert time.monotonic() < deadline, [pid for pid in pids if not gone(pid)]
        time.sleep(0.02)


@pytest.fixture(scope="module")
def lakes():
    with ProcessVectorEnv(LAKE, 7, 3) as vector:
        yield make_vector(LAKE, 7), vector


@pytest.fixture(scope="module")
def troubled():
    """Two workers, the first with environments 0 and 1, the second with 2. Whatever a test does, it stays usable."""
    with ProcessVectorEnv(TROUBLED, 3, 2, timeout=20) as vector:
        yield vector


@pytest.fixture(scope="module")
def impatient():
    """The same with little patience."""
    with ProcessVectorEnv(TROUBLED, 3, 2, timeout=1) as vector:
        yield vector


@pytest.mark.parametrize("script", range(12))
def test_random_scripts_give_what_one_process_gives(lakes, script):
    """Also before the first reset, after the end, with replies of all kinds; each script goes on where one ended."""
    rng, env = np.random.default_rng(script), environment_class(LAKE)
    for _ in range(30):
        match rng.integers(6):
            case 0:
                mask, seeds = rng.random(7) < 0.5, rng.integers(9, size=7).tolist()
                mask[rng.integers(7)] = True
                options = {"task": int(rng.integers(9)), "split": str(rng.choice(["train", "test"]))}
                assert_same(*(v.reset(seed=seeds, options=options | {"reset_mask": mask}) for v in lakes))
            case 1 if rng.random() < 0.3:
                assert_same(*(v.reset(seed=script) for v in lakes))
            case 2 if rng.random() < 0.3:
                assert_same(*(v.reset() for v in lakes))
            case _:
                replies = [env.random_reply(rng, {}) if rng.random() < 0.8 else "é\x00<" for _ in range(7)]
                assert_same(*(v.step(tuple(replies)) for v in lakes))


@pytest.mark.parametrize("env_id", [LAKE, "hgpo/ALFWorld-v0", "hgpo/WebShop-v0"])
def test_a_rollout_is_the_same(env_id):
    """Two waves of groups, episodes of different lengths, and a worker killed meanwhile."""
    env = environment_class(env_id)
    options = {"hgpo/ALFWorld-v0": {"receptacles": 5}, "hgpo/WebShop-v0": {"products": 60}}.get(env_id, {})
    play, tokenizer = scripted_act(random_policy(env_id, 0), ByteTokenizer()), ByteTokenizer()

    def roll(vector, act=play):
        config = RolloutConfig(max_steps=12, max_prompt_length=10_000)
        rest = {"sampling": SamplingConfig(), "format_prompt": env.format_prompt, "tokenizer": tokenizer}
        return collect(act, {}, vector, [3, 1, 4], 3, config, jax.random.key(0), task_types=env.task_types, **rest)

    with ProcessVectorEnv(env_id, 5, 2, options) as vector:

        def killing(params, requests, sampling):
            if requests[0].turn in (4, 7):
                os.kill(vector.pids[requests[0].turn % 2], signal.SIGKILL)
            return play(params, requests, sampling)

        ours = roll(vector, killing)
    theirs = roll(make_vector(env_id, 5, **options))
    assert ours.outcomes == theirs.outcomes
    for name, column in vars(theirs.batch).items():
        own = getattr(ours.batch, name)
        assert (own is None) == (column is None)
        for one, other in zip([] if own is None else own, [] if column is None else column, strict=True):
            np.testing.assert_array_equal(one, other)
    timing = ("seconds", "tokens_per_second")
    for name in set(theirs.metrics) - set(timing):
        np.testing.assert_equal(ours.metrics[name], theirs.metrics[name])


def test_workers_do_not_import_jax(troubled):
    assert "jax" in sys.modules
    _, infos = reset(troubled)
    np.testing.assert_array_equal(infos["jax"], [False] * 3)
    np.testing.assert_array_equal(infos["pid"], np.repeat(troubled.pids, [2, 1]))


def test_infos_are_nested_as_in_one_process(troubled):
    alone = make_vector(TROUBLED, 3)
    for vector in (alone, troubled):
        reset(vector)
    for _ in range(2):
        assert_same(alone.step(("", "end", "cut")), troubled.step(("", "end", "cut")))


@pytest.mark.parametrize(("kill", "how"), [(signal.SIGKILL, "by signal 9"), (signal.SIGSEGV, "by signal 11")])
def test_a_worker_killed_between_calls_is_replaced(troubled, capfd, kill, how):
    starts, _ = reset(troubled, seed=7)
    troubled.step(("a", "end", "c"))
    before = troubled.pids
    os.kill(before[0], kill)
    seen, rewards, terminated, _, _ = troubled.step(("a", "b", "c"))
    assert seen == ("2 ", "1 ", "2 ")  # environment 1 has ended and idles
    np.testing.assert_array_equal(rewards, [2, 0, 2])
    np.testing.assert_array_equal(terminated, [False, True, False])
    told = capfd.readouterr().err
    assert f"environment worker 0 (process {before[0]}) was killed {how}" in told
    assert "a new one replays 1 episode\n" in told
    assert (troubled.pids[0] != before[0], troubled.pids[1]) == (True, before[1])
    assert reset(troubled, seed=7)[0] == starts


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("die", "was killed by signal 9 (Killed)"),
        ("exit", "ended with exit code 3"),
        ("spin", "gave no answer within 1 s and was killed"),
        ("stop", "gave no answer within 1 s and was killed"),
    ],
)
def test_a_step_that_takes_its_worker_along_is_made_again(impatient, tmp_path, capfd, fault, reason):
    reset(impatient)
    impatient.step(("a", "b", "c"))
    seen, rewards, _, _, _ = impatient.step((f"once {tmp_path / 'done'} {fault}", "b", "c"))
    assert seen == ("2 ", "2 ", "2 ")
    np.testing.assert_array_equal(rewards, [2, 2, 2])
    told = capfd.readouterr().err
    assert reason in told
    assert "a new one replays 2 episodes" in told


def test_a_stopped_worker_that_takes_no_message_is_replaced(impatient, capfd):
    reset(impatient)
    os.kill(impatient.pids[1], signal.SIGSTOP)
    assert impatient.step(("a", "b", "c" * 3_000_000))[0] == ("1 ", "1 ", "1 ")
    assert "took no message within 1 s and was killed" in capfd.readouterr().err


def test_a_worker_lost_again_and_again_is_an_error(troubled, capfd):
    reset(troubled)
    with pytest.raises(RuntimeError, match=r"lost 3 times over the same call.*signal 9.*environments 0 to 1"):
        troubled.step(("die", "b", "c"))
    assert capfd.readouterr().err.count("a new one replays") == 2
    assert reset(troubled)[0] == reset(make_vector(TROUBLED, 3))[0]  # it can still be used


def test_a_replay_that_differs_is_an_error(troubled):
    reset(troubled)
    troubled.step(("a", "clock", "c"))
    os.kill(troubled.pids[0], signal.SIGKILL)
    with pytest.raises(RuntimeError, match=r"environment 1 cannot be replayed: .* after step 1.*deterministic"):
        troubled.step(("a", "b", "c"))


def test_an_exception_comes_as_it_is_with_the_index_and_the_traceback(troubled):
    reset(troubled)
    pids = troubled.pids
    with pytest.raises(ValueError, match="no such door") as raised:
        troubled.step(("a", "b", "fail"))
    notes = "\n".join(raised.value.__notes__)
    assert "(environment 2)" in notes
    assert 'raise ValueError("no such door")' in notes
    with pytest.raises(ValueError, match="no such door"):
        reset(troubled, [1], fault="fail")
    with pytest.raises(RuntimeError, match="Odd: one"):
        troubled.step(("fail oddly", "", ""))
    with pytest.raises(Exception, match=r"pickle.*\n.*lambda|[Cc]an't (get|pickle)"):
        troubled.step(("odd", "", ""))
    reset(troubled)
    assert troubled.step(("", "", ""))[0] == ("1 ", "1 ", "1 ")
    assert troubled.pids == pids, "no worker had to be replaced"


@pytest.mark.parametrize("fault", ["fail", "die"])
def test_environments_that_cannot_be_made(fault):
    expected = (ValueError, "no such door") if fault == "fail" else (RuntimeError, r"worker 0 .* while it started")
    with pytest.raises(expected[0], match=expected[1]):
        ProcessVectorEnv(TROUBLED, 3, 2, {"fault": fault})


def test_an_interrupted_call_leaves_no_answer_behind(troubled, tmp_path):
    class Interrupted(Exception):
        pass

    def interrupt(*_):
        raise Interrupted

    reset(troubled)
    old = signal.signal(signal.SIGUSR1, interrupt)
    try:
        timer = threading.Timer(0.3, signal.pthread_kill, (threading.get_ident(), signal.SIGUSR1))
        timer.start()
        with pytest.raises(Interrupted):
            troubled.step(("a", f"once {tmp_path / 'done'} spin", "c"))
        timer.join()
    finally:
        signal.signal(signal.SIGUSR1, old)
    assert troubled.step(("a", "b", "c"))[0] == ("1 ", "1 ", "1 "), "as if the call had not been made"


def test_bad_calls_are_refused_as_gymnasium_refuses_them(troubled):
    reset(troubled)
    troubled.step(("a", "b", "c"))
    for vector in (make_vector(TROUBLED, 3), troubled):
        with pytest.raises(ValueError, match="must have shape"):
            vector.reset(seed=0, options={"reset_mask": np.array([True, False])})
        with pytest.raises(ValueError, match="at least one True"):
            vector.reset(seed=0, options={"reset_mask": np.zeros(3, bool)})
        with pytest.raises(ValueError, match="got length=2"):
            vector.reset(seed=[0, None])
        with pytest.raises(ValueError, match="zip"):
            vector.step(("a", "b"))
    assert troubled.step(("a", "b", "c"))[0] == ("2 ", "2 ", "2 "), "nothing was reset"


def test_how_many_workers():
    with pytest.raises(ValueError, match="workers must be at least 0, got -1"):
        make_vector(LAKE, 2, -1)
    assert not isinstance(make_vector(LAKE, 2, 0), ProcessVectorEnv)
    vector = make_vector(LAKE, 2, 5, size=5)
    assert isinstance(vector, ProcessVectorEnv)
    assert len(vector.pids) == 2, "one for each environment is enough"
    assert reset(vector, task=1)[0] == reset(make_vector(LAKE, 2, size=5), task=1)[0]
    vector.close()


def test_workers_end_when_the_environments_are_closed_or_dropped():
    vector = ProcessVectorEnv(LAKE, 2, 2)
    pids = vector.pids
    vector.close()
    vector.close()
    assert_gone(pids, 0)
    with pytest.raises(gymnasium.error.ClosedEnvironmentError):
        vector.reset(seed=0)
    vector = ProcessVectorEnv(LAKE, 2, 2)
    pids = vector.pids
    del vector
    gc.collect()
    assert_gone(pids, 0)


@pytest.mark.parametrize("end", ["return", "kill"])
def test_workers_end_with_their_parent(end):
    """Also the one whose environment does not come back."""
    code = (
        "import sys, gymnasium; from envs.workers import ProcessVectorEnv\n"
        f"gymnasium.register({TROUBLED!r}, 'troubled:Troubled')\n"
        f"vector = ProcessVectorEnv({TROUBLED!r}, 2, 2)\n"
        "vector.reset(seed=0)\nprint(*vector.pids, flush=True)\n"
    )
    code += "vector.step(('spin', 'a'))" if end == "kill" else ""
    here = Path(__file__)
    path = os.pathsep.join([str(here.parents[2]), str(here.parent)])
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", code]
    process = subprocess.Popen(
        command, env=os.environ | {"PYTHONPATH": path}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout
        pids = [int(pid) for pid in process.stdout.readline().split()]
        assert len(pids) == 2
        if end == "kill":
            time.sleep(0.3)
            process.kill()
        assert process.communicate()[1] == ""
        assert process.returncode == (0 if end == "return" else -signal.SIGKILL)
    assert_gone(pids)
