"""Some sixty programs are compiled here to run once: optimizing them would take most of the time."""

import jax
import pytest


@pytest.fixture(scope="module", autouse=True)
def quick_compilation():
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
