"""Recipes: published losses and ways to sample, as settings of a run. They leave the choice of the estimator alone.

    dapo      clip-higher, token mean, dynamic sampling, soft overlong punishment           arXiv 2503.14476
    dr_grpo   no division by the standard deviation, token losses over a constant length     arXiv 2503.20783
    gspo      one ratio a reply, clipped within its own small range, mean over replies       arXiv 2507.18071

None of them has a KL term, an entropy bonus or a dual clip.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from experiments.configs import RunConfig


def dapo(config: RunConfig) -> RunConfig:
    """Decoupled clip and dynamic sampling (section 3 and 4.1): clip 0.2 / 0.28, L_cache 4096 of L_max 20480 tokens.

    At most ten rounds an iteration, as in its released scripts. The penalty of 1 stands there beside rewards of -1
    and 1: where rewards are larger, ``--returns.overlong-penalty`` scales it.
    """
    return dataclasses.replace(
        config,
        loss=_plain_loss(config, clip_high=0.28),
        returns=dataclasses.replace(config.returns, overlong_share=0.2, overlong_penalty=1.0),
        rollout=dataclasses.replace(config.rollout, dynamic_sampling_rounds=10),
    )


def dr_grpo(config: RunConfig) -> RunConfig:
    """GRPO done right (section 3.2): no std in any estimator, and the config's reply limit as the constant length."""
    settings = {name: getattr(config, name) for name in config.__dataclass_fields__}
    centred = {
        name: dataclasses.replace(part, normalize_std=False)
        for name, part in settings.items()
        if hasattr(part, "normalize_std")
    }
    length = config.rollout.max_response_length
    return dataclasses.replace(
        config, loss=_plain_loss(config, aggregation="constant", constant_length=length), **centred
    )


def gspo(config: RunConfig) -> RunConfig:
    """Group sequence policy optimization (section 4.1 and 5.1): clip 3e-4 / 4e-4, for a ratio averaged over tokens."""
    loss = _plain_loss(config, clip_low=3e-4, clip_high=4e-4, ratio="sequence", aggregation="sequence_mean")
    return dataclasses.replace(config, loss=loss)


RECIPES: Mapping[str, Callable[[RunConfig], RunConfig]] = {"dapo": dapo, "dr_grpo": dr_grpo, "gspo": gspo}


def apply_recipe(config: RunConfig, name: str) -> RunConfig:
    """The config with the fields of the recipe; with "", as it is.

    Raises:
      ValueError: no recipe of this name; the message lists them.
    """
    if name and name not in RECIPES:
        raise ValueError(f"no recipe {name!r}; there are: {', '.join(RECIPES)}")
    return RECIPES[name](config) if name else config


def take_recipe(args: Sequence[str]) -> tuple[str, list[str]]:
    """What follows --recipe ("" without one), and the other arguments.

    It has to be known before these are read: the recipe sets the defaults, from which they differ where given.

    Raises:
      ValueError: --recipe without a name.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--recipe", nargs="?", default="")
    known, rest = parser.parse_known_args(list(args))
    if known.recipe is None:
        raise ValueError(f"--recipe needs a name; there are: {', '.join(RECIPES)}")
    return known.recipe, rest


def _plain_loss(config: RunConfig, **changes: Any) -> Any:
    """The clipped surrogate and nothing beside it, changed where a recipe says so. Other choices stay the config's."""
    plain: dict[str, Any] = {
        "clip_low": 0.2,
        "clip_high": 0.2,
        "dual_clip": None,
        "kl_coef": 0.0,
        "entropy_coef": 0.0,
        "ratio": "token",
        "aggregation": "token_mean",
    }
    return dataclasses.replace(config.loss, **plain | changes)
