"""The whole state of a training run, to a checkpoint and back: a run that continues from it is bit-equal to one that never stopped."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torchrec.distributed.model_parallel import DistributedModelParallel

from emberline.errors import CheckpointError
from emberline.train.checkpoint import names, store
from emberline.train.checkpoint.tensors import describe_tensors, load_tensors, read_tensors, save_tensors
from emberline.train.config.pipeline import PipelineConfig
from emberline.train.models.model import RecModel
from emberline.train.optim import ModelOptimizer

_PACKAGES = ("emberline", "torch", "torchrec", "fbgemm-gpu-cpu", "fbgemm-gpu", "numpy")


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a run is.

    Args:
        step: batches trained.
        epoch: passes over the data that are complete.
        rows: rows of the pass under way that were trained on, by all ranks together.
        updates: optimiser steps done, which schedules count.
        loss: of the last batch; None before the first.
        window_loss: sum of the losses since the last log line.
        window_steps: their number.
        config_folder: where the config file was: a user's own module may be imported from there.
    """

    step: int = 0
    epoch: int = 0
    rows: int = 0
    updates: int = 0
    loss: float | None = None
    window_loss: float = 0.0
    window_steps: int = 0
    config_folder: str = ""


@dataclass(frozen=True)
class RunTensors:
    """What holds a run's tensors: the sharded model, the model inside it, the optimiser, and what else a training step keeps, by name."""

    sharded: DistributedModelParallel
    model: RecModel
    optimizer: ModelOptimizer
    step: Mapping[str, Tensor] = field(default_factory=dict)

    def in_place(self) -> names.NamedTensors:
        """The live tensors that a load fills."""
        return {**names.table_tensors(self.model), **names.moment_tensors(self.sharded), **names.dense_tensors(self.model), **self.step}

    def all(self) -> names.NamedTensors:
        """Everything that a checkpoint holds."""
        return {
            **self.in_place(),
            **names.zch_tensors(self.model),
            **names.dense_optimizer_tensors(self.optimizer.dense_state()),
            "rng/torch": torch.get_rng_state(),
        }


def save_run(run: Path, tensors: RunTensors, config: PipelineConfig, progress: Progress, imported: Mapping[str, Any] | None = None) -> Path:
    """Write the checkpoint `run/step-N`; it is complete when this returns, and not there at all before.

    `imported` is what the manifest says of a checkpoint that was made of others'.

    Raises:
        CheckpointError: it cannot be written, as where the disk is full; nothing of it is left.
    """
    path = store.step_path(run, progress.step)
    try:
        with store.write_checkpoint(run, progress.step, package_versions(), imported) as draft:
            save_tensors(draft / store.TENSORS_NAME, tensors.all())
            (draft / store.CONFIG_NAME).write_text(config.text, encoding="utf-8")
            (draft / store.SCHEMA_NAME).write_text(json.dumps(tensors.model.schema().to_dict(), indent=1), encoding="utf-8")
            (draft / store.STATE_NAME).write_text(json.dumps(asdict(progress), indent=1), encoding="utf-8")
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written: {error}") from error
    return path


def restore_run(path: Path, tensors: RunTensors) -> Progress:
    """Put a checkpoint's state into a run that was just built from the same config.

    Raises:
        CheckpointError: a tensor is missing, surplus, or of another shape; names them.
    """
    folder = path / store.TENSORS_NAME
    into = tensors.in_place()
    _check_names(folder, into, names.zch_tensors(tensors.model))
    load_tensors(folder, into)
    names.load_zch_tensors(tensors.model, read_tensors(folder, "zch/"))
    _load_dense_optimizer(tensors.optimizer, read_tensors(folder, "dense_optim/"), path)
    progress = read_progress(path)
    torch.set_rng_state(read_tensors(folder, "rng/")["rng/torch"])
    return progress


def read_progress(path: Path) -> Progress:
    """How far the run was.

    Raises:
        CheckpointError: `state.json` is missing, or is not what this release writes.
    """
    data = store.read_json(path / store.STATE_NAME)
    try:
        return Progress(**data)
    except TypeError as error:
        raise CheckpointError(f"{path / store.STATE_NAME} is not of this release: {error}") from error


def package_versions() -> dict[str, str]:
    """Versions of the packages that decide what numbers come out."""
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _check_names(folder: Path, live: Mapping[str, object], zch: Mapping[str, object]) -> None:
    """Missing or surplus names, before anything is filled. The dense optimiser's state fills only as it steps, so it isn't expected."""
    expected = {*live, *zch, "rng/torch"}
    stored = {name for name in describe_tensors(folder) if not name.startswith("dense_optim/")}
    problems = [f"{name} is missing" for name in sorted(expected - stored)]
    problems += [f"{name} is not in the model" for name in sorted(stored - expected)]
    if problems:
        raise CheckpointError(f"{folder} does not fit the model: {'; '.join(problems)}")


def _load_dense_optimizer(optimizer: ModelOptimizer, tensors: Mapping[str, Tensor], path: Path) -> None:
    state = names.split_dense_optimizer_tensors(tensors)
    try:
        optimizer.load_dense_state(state)
    except KeyError as error:
        raise CheckpointError(f"{path}: the dense optimiser has state for {error}, which is no parameter of the model") from error
