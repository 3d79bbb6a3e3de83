"""Checkpoints with orbax: saved in the background, the best and the latest kept, never half-written."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import preservation_policy

from hgpo_jax.types import TrainState


class Checkpoints:
    """A directory of checkpoints, one per iteration.

    A checkpoint holds the parameters, the rest of the ``TrainState`` (optimizer, step, key) and a JSON
    ``meta``: what the experiment needs to go on, such as its configuration and the position in its task
    stream. A save is written aside and renamed when it is whole: a process killed in the middle leaves the
    previous checkpoint the latest.

    Args:
      directory: made if it is not there.
      keep: how many of the latest to keep.
      keep_best: how many of the best by ``metrics["success"]`` to keep besides.

    Use as a context manager, or call ``close``: a save may still be under way.
    """

    def __init__(self, directory: str | os.PathLike[str], keep: int = 1, keep_best: int = 1):
        self.directory = os.path.abspath(directory)
        policy = preservation_policy.AnyPreservationPolicy(
            [
                preservation_policy.LatestN(keep),
                preservation_policy.BestN(get_metric_fn=_success, n=keep_best),
            ]
        )
        options = ocp.CheckpointManagerOptions(
            preservation_policy=policy, best_fn=_success, best_mode="max", cleanup_tmp_directories=True
        )
        # Named here, so that a manager that has not saved yet can describe what it finds.
        handlers = ocp.handlers.create_default_handler_registry(
            params=ocp.StandardCheckpointHandler(),
            rest=ocp.StandardCheckpointHandler(),
            meta=ocp.JsonCheckpointHandler(),
        )
        self._manager = ocp.CheckpointManager(self.directory, options=options, handler_registry=handlers)

    def save(
        self,
        iteration: int,
        state: TrainState,
        meta: Mapping[str, Any] | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """Copy the state and write it in the background; the state may be donated right after.

        Args:
          iteration: names the checkpoint. One that is there already is not written again.
          state: to save.
          meta: anything that JSON holds.
          metrics: ``success`` ranks the checkpoint. Where none has it, the latest counts as the best.
        """
        args = ocp.args.Composite(
            params=ocp.args.StandardSave(state.params),
            rest=ocp.args.StandardSave(_rest(state)),
            meta=ocp.args.JsonSave(dict(meta or {})),
        )
        ranked = {"success": float(metrics["success"])} if metrics and "success" in metrics else {}
        if iteration not in self._manager.all_steps():
            self._manager.save(iteration, args=args, metrics=ranked)

    def restore(
        self,
        target: TrainState,
        which: Literal["latest", "best"] | int = "latest",
        expected: Mapping[str, Any] | None = None,
    ) -> tuple[TrainState, dict[str, Any]]:
        """Load a checkpoint into the shapes and onto the devices of ``target``.

        Args:
          target: a state of the same model and optimizer: arrays, or ``jax.ShapeDtypeStruct`` with shardings.
          which: "latest", "best" by success, or an iteration.
          expected: entries that ``meta`` has to hold, for example {"model": the model's config as a dict}.

        Returns:
          The state, bit for bit as it was saved, and ``meta``.

        Raises:
          ValueError: no checkpoint, or one of another model or optimizer: the message names the first
          difference.
        """
        iteration, meta = self._checked_meta(which, expected)
        self._check_tree(iteration, "params", target.params)
        self._check_tree(iteration, "rest", _rest(target))
        restored = self._manager.restore(
            iteration,
            args=ocp.args.Composite(
                params=ocp.args.StandardRestore(_abstract(target.params)),
                rest=ocp.args.StandardRestore(_abstract(_rest(target))),
            ),
        )
        return TrainState(params=restored["params"], **restored["rest"]), meta

    def restore_params(
        self,
        target: Any,
        which: Literal["latest", "best"] | int = "best",
        expected: Mapping[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Only the parameters, for evaluation without an optimizer. Arguments, errors as ``restore``."""
        iteration, meta = self._checked_meta(which, expected)
        self._check_tree(iteration, "params", target)
        args = ocp.args.Composite(params=ocp.args.StandardRestore(_abstract(target)))
        return self._manager.restore(iteration, args=args)["params"], meta

    def meta(self, which: Literal["latest", "best"] | int = "latest") -> dict[str, Any]:
        """What was saved beside the state, without loading any of it."""
        return self._checked_meta(which, None)[1]

    def iterations(self) -> list[int]:
        """The iterations that have a checkpoint, ascending."""
        return sorted(self._manager.all_steps())

    def wait(self) -> None:
        """Return when everything is on disk."""
        self._manager.wait_until_finished()

    def close(self) -> None:
        """Wait, then release the directory."""
        self.wait()
        self._manager.close()

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _checked_meta(
        self, which: Literal["latest", "best"] | int, expected: Mapping[str, Any] | None
    ) -> tuple[int, dict[str, Any]]:
        self.wait()  # a checkpoint still being written counts
        there = self.iterations()
        if not there:
            raise ValueError(f"no checkpoint in {self.directory}: check the path, or start a run without resuming")
        named = {"latest": there[-1], "best": self._manager.best_step()}
        iteration = named[which] if isinstance(which, str) else which
        if iteration not in there:
            raise ValueError(f"no checkpoint of iteration {iteration} in {self.directory}; there are {there}")
        meta = self._manager.restore(iteration, args=ocp.args.Composite(meta=ocp.args.JsonRestore()))["meta"]
        for key, value in (expected or {}).items():
            difference = _difference(key, meta.get(key), value)
            if difference:
                raise ValueError(f"checkpoint {iteration} in {self.directory} is of another run: {difference}")
        return iteration, meta

    def _check_tree(self, iteration: int, item: str, target: Any) -> None:
        stored = self._manager.item_metadata(iteration)[item].tree
        there, here = _shapes(stored), _shapes(ocp.tree.serialize_tree(target, keep_empty_nodes=True))
        where = f"checkpoint {iteration} in {self.directory} does not fit"
        for name in sorted(there.keys() | here.keys()):
            if there.get(name) != here.get(name):
                raise ValueError(
                    f"{where}: {name} is {there.get(name, 'absent')} in the checkpoint, "
                    f"{here.get(name, 'absent')} in this run; use the model and optimizer it was saved with"
                )


def _success(metrics: Mapping[str, float]) -> float:
    """Below any evaluation where there was none; among equals orbax takes the latest."""
    return metrics.get("success", float("-inf"))


def _rest(state: TrainState) -> dict[str, Any]:
    return {"opt_state": state.opt_state, "step": state.step, "key": state.key}


def _abstract(tree: Any) -> Any:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), tree)


def _shapes(tree: Any) -> dict[str, str]:
    def shape(x: Any) -> str:
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):  # stored as the integers it consists of
            x = jax.eval_shape(jax.random.key_data, x)
        return f"{x.dtype}{list(x.shape)}"

    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): shape(x) for path, x in leaves}


def _difference(path: str, there: Any, here: Any) -> str | None:
    """The first entry in which two JSON values differ, in words."""
    if isinstance(here, Mapping) and isinstance(there, Mapping):
        for key in [*here, *(k for k in there if k not in here)]:
            difference = _difference(f"{path}.{key}", there.get(key), here.get(key))
            if difference:
                return difference
        return None
    if isinstance(here, tuple):  # JSON knows lists only
        here = list(here)
    return None if there == here else f"{path} is {there!r} in the checkpoint, {here!r} in this run"
