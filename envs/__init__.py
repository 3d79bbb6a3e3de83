"""Text environments on gymnasium, usable without hgpo_jax. Importing the package registers their ids."""

from envs.core import register_environments

register_environments()
