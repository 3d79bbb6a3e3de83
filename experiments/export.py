"""Write a run's policy as a Hugging Face folder, which transformers, vLLM and SGLang open.

python -m experiments.export runs/hgpo-FrozenLakeText-seed0 exported
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro

from experiments.assembly import restore_params
from experiments.configs import config_from_json
from experiments.console import CONSOLE, run_command
from hgpo_jax.policy.tokenization import load_tokenizer
from hgpo_jax.policy.weights import resolve_checkpoint, save_checkpoint


def export(
    run: Annotated[Path, tyro.conf.Positional],
    out: Annotated[Path, tyro.conf.Positional],
    which: Literal["best", "latest"] = "latest",
    dtype: Literal["float32", "bfloat16"] | None = None,
    overwrite: bool = False,
) -> None:
    """Writes the folder.

    Args:
      run: a folder that train.py has made.
      out: the new folder.
      which: checkpoint to write; best is the best on the held-out panel during training.
      dtype: of the weights in the files; the parameters' own unless given.
      overwrite: replace what the new folder holds.
    """
    config = config_from_json(run / "config.json")
    if out.resolve() == run.resolve():
        raise ValueError(f"{out} is the run itself; name another folder for the export")
    # Tokenizer and generation config come from where training started, or are made from the run's own tokenizer.
    source = resolve_checkpoint(config.init) if config.init else None
    tokenizer = None if source else load_tokenizer(config.tokenizer)
    params = restore_params(config, run, which)
    save_checkpoint(params, config.model, out, source=source, tokenizer=tokenizer, dtype=dtype, overwrite=overwrite)
    CONSOLE.print(f"{which} checkpoint of {run} written to {out}", highlight=False)


def main(argv: list[str] | None = None) -> None:
    """The command line."""
    run_command(export, argv, __doc__)


if __name__ == "__main__":
    main()
