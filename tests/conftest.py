"""Every test runs on eight virtual CPU devices; rank promotion raises; warnings are errors (pyproject)."""

import atexit
import os
import shutil
import tempfile

import jax

# Many tests train the same small run: what one has compiled, the workers and the processes that they start take from
# here. JAX locks a cache whose size is bounded; the bound is far above what is needed.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="hgpo_jax_compiled_")
    atexit.register(shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)
for option, value in {"compilation_cache_max_size": 8 << 30, "persistent_cache_min_compile_time_secs": 0.2}.items():
    os.environ[f"JAX_{option.upper()}"] = str(value)
    jax.config.update(f"jax_{option}", value)
jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")
