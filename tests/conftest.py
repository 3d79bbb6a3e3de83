"""Every test runs on eight virtual CPU devices; rank promotion raises; warnings are errors (pyproject)."""

import jax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")
