"""A process that waits in vain ends and says for what; one that nobody waits for is left alone."""

import time

import jax
import pytest
from several import start_several

from hgpo_jax.watchdog import LOST, Watchdog, leave

HANGING = """
import time
from hgpo_jax.watchdog import Watchdog
with Watchdog(1.0, process=7) as watchdog:
    for _ in range(8):
        watchdog.feed("rollout", 3)
        time.sleep(0.25)  # twice the deadline in all: what is fed lives
    watchdog.feed("update", 3)
with Watchdog(1.0, process=7) as watchdog:
    watchdog.feed("rollout", 4)
    def stuck_environment(): time.sleep(60)
    stuck_environment()
"""
EARLY = """
import sys
from hgpo_jax.processes import ProcessesConfig, start_processes
start_processes(ProcessesConfig(count=2, id=1, coordinator=sys.argv[1], deadline=2))
"""


@pytest.mark.slow
def test_who_waits_in_vain_says_for_what() -> None:
    hanging, early = (start_several(1, 1, "-c", code, options=False) for code in (HANGING, EARLY))
    with hanging, early:
        assert hanging.wait(60) == early.wait(60) == [LOST], hanging.outputs() + early.outputs()
        assert "error: process 7 made no progress for 1 s in rollout of iteration 4: it hangs, or" in hanging.said(0)
        assert "in stuck_environment" in hanging.said(0), "the stack shows where"
        assert "process 1 made no progress for 2 s in waiting for the other 1 at 127.0.0.1:" in early.said(0)


STUCK = """
import sys, time
from hgpo_jax.processes import ProcessesConfig, gather, start_processes
from hgpo_jax.watchdog import Watchdog
address, count, me = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
start_processes(ProcessesConfig(count=count, id=me, coordinator=address))
with Watchdog(8, me) as watchdog, watchdog.failing_together():
    for iteration in range(1, 9):
        watchdog.feed("rollout", iteration)
        if iteration == 3 and me == 1:
            time.sleep(600)  # alive, heart beating
        gather(iteration)
"""


@pytest.mark.slow
def test_a_process_that_hangs_ends_both() -> None:
    with start_several(2, 1, "-c", STUCK, options=False) as processes:
        assert processes.wait(60) == [LOST, LOST], processes.outputs()
        assert "process 1 made no progress for 8 s in rollout of iteration 3" in processes.outputs()
        assert "process 0" in processes.said(0)
        assert "in rollout of iteration 3" in processes.said(0)


FAILING = """
import jax
from hgpo_jax.watchdog import Watchdog
with Watchdog(60, process=1) as watchdog, watchdog.failing_together():
    watchdog.feed("update", 5)
    raise jax.errors.JaxRuntimeError("INTERNAL: connection closed by peer\\nmore")
"""


@pytest.mark.slow
def test_a_failed_common_computation_ends_the_process_at_once() -> None:
    with start_several(1, 1, "-c", FAILING, options=False) as processes:
        assert processes.wait(60) == [LOST]
        assert "error: process 1 failed in update of iteration 5, most likely since another" in processes.said(0)
        assert processes.said(0).endswith("Here: INTERNAL: connection closed by peer")


def test_a_single_process_may_take_its_time() -> None:
    with Watchdog(0.01, None) as watchdog:
        watchdog.feed("update", 1)
        time.sleep(0.05)
    with pytest.raises(jax.errors.JaxRuntimeError, match="out of memory"), watchdog.failing_together():
        raise jax.errors.JaxRuntimeError("out of memory")
    with pytest.raises(SystemExit) as stop:
        leave(2, None)
    assert stop.value.code == 2
