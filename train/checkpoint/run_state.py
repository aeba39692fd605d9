"""The whole state of a training run, to a checkpoint and back: a run that continues from it is bit-equal to one that never stopped."""

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torchrec.distributed.model_parallel import DistributedModelParallel

from emberline.errors import CheckpointError
from emberline.train.checkpoint import names, store
from emberline.train.checkpoint.id_maps import check_sizes, id_map_names, id_map_tensors, restore_id_maps
from emberline.train.checkpoint.layout import Layout, layout_of, plan_of
from emberline.train.checkpoint.live_dynamic import dynamic_names, dynamic_tensors, live_tables, restore_dynamic
from emberline.train.checkpoint.ranks import from_first_rank
from emberline.train.checkpoint.shards import table_shards
from emberline.train.checkpoint.table_state import restore_tables, table_state
from emberline.train.checkpoint.tensors import TensorInfo, Writable, describe_tensors, load_tensors, read_tensors, save_tensors
from emberline.train.config.pipeline import PipelineConfig
from emberline.train.data.files import DataFile
from emberline.train.models.model import RecModel
from emberline.train.optim import ModelOptimizer
from emberline.train.zch import ROUTINGS, NewShard, zch_modules

_PACKAGES = ("emberline", "torch", "torchrec", "fbgemm-gpu-cpu", "fbgemm-gpu", "numpy")

OTHER_PARTS_STEP = "other_parts_step"
"""In a manifest: the step of everything but the tables that grow, where it is another."""


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
        files: what the place in the data is a place in, by the config's field; None: that was not noted.
        run: which run this is, where it has tables that grow: its increments are of no other.
        mark: which state of the run this is, likewise: what an increment begins with.
        times: of such a run, training steps of tables and when they were done, in seconds since 1970, ascending.
    """

    step: int = 0
    epoch: int = 0
    rows: int = 0
    updates: int = 0
    loss: float | None = None
    window_loss: float = 0.0
    window_steps: int = 0
    config_folder: str = ""
    files: Mapping[str, Sequence[DataFile]] | None = None
    run: str = ""
    mark: str = ""
    times: Sequence[tuple[int, int]] = ()

    def text(self) -> str:
        """As a checkpoint has it."""
        return json.dumps(asdict(self), indent=1)


@dataclass(frozen=True)
class RunTensors:
    """What holds a run's tensors.

    Args:
        sharded: the model under DistributedModelParallel.
        model: the model inside it.
        optimizer: of both.
        step: what else a training step keeps, by name.
        group: of all ranks, on the CPU; None: the default one.
    """

    sharded: DistributedModelParallel
    model: RecModel
    optimizer: ModelOptimizer
    step: Mapping[str, Tensor] = field(default_factory=dict)
    group: dist.ProcessGroup | None = None

    def dense(self) -> dict[str, Tensor]:
        """The live tensors that all ranks have alike, but for the dense optimiser's."""
        return {**names.dense_tensors(self.model), **self.step}

    def all(self) -> dict[str, Writable]:
        """Everything that this rank gives to a checkpoint; what all ranks have alike comes from the first."""
        tensors: dict[str, Writable] = {**table_state(table_shards(self.sharded)), **id_map_tensors(self.model, self.group)}
        tensors |= dynamic_tensors(live_tables(self.sharded), self.group)
        rank = dist.get_rank()
        if rank == 0:
            tensors |= {**self.dense(), **names.dense_optimizer_tensors(self.optimizer.dense_state())}
        if self.sharded.device.type == "cuda":
            tensors[names.generator_name(rank, "cuda")] = torch.cuda.get_rng_state(self.sharded.device)
        return {**tensors, names.generator_name(rank): torch.get_rng_state()}


@dataclass(frozen=True)
class RunContent:
    """What goes into one checkpoint.

    Args:
        step: batches trained.
        tensors: of this rank.
        texts: small files, by name.
        notes: for the manifest.
    """

    step: int
    tensors: Mapping[str, Writable]
    texts: Mapping[str, str]
    notes: Mapping[str, Any]


def content_of(tensors: RunTensors, config: PipelineConfig, progress: Progress, imported: Mapping[str, Any] | None = None) -> RunContent:
    """A run as it is: its tensors are the live ones. All ranks must call it together.

    `imported` is what the manifest says of a checkpoint that was made of others'.
    """
    layout = asdict(layout_of(tensors.sharded, tensors.model))
    texts = {
        store.CONFIG_NAME: config.text,
        store.SCHEMA_NAME: json.dumps(tensors.model.schema().to_dict(), indent=1),
        store.STATE_NAME: progress.text(),
        store.PLAN_NAME: plan_of(tensors.sharded, tensors.model).text(),
    }
    return RunContent(progress.step, tensors.all(), texts, {"layout": layout, **({} if imported is None else {"imported": dict(imported)})})


def write_run(run: Path, content: RunContent, group: dist.ProcessGroup | None = None) -> Path:
    """Write the checkpoint `run/step-N`; it is complete when this returns, and not there at all before. All ranks must call it together.

    Args:
        run: the run's folder, the same for all ranks.
        content: of this rank.
        group: of all ranks, on the CPU; None: the default one.

    Raises:
        CheckpointError: it cannot be written, as where the disk is full; nothing of it is left.
    """
    path, draft = store.step_path(run, content.step), store.draft_path(run, content.step)
    with ExitStack() as stack:
        first = partial(from_first_rank, group=group)
        first(lambda: stack.enter_context(_plain(path, store.write_checkpoint(run, content.step, package_versions(), content.notes))))
        save_tensors(draft / store.TENSORS_NAME, content.tensors, group)
        first(lambda: _write_texts(draft, path, content.texts))
        first(stack.close)
    return path


def save_run(run: Path, tensors: RunTensors, config: PipelineConfig, progress: Progress, imported: Mapping[str, Any] | None = None) -> Path:
    """Write a checkpoint of a run as it is; see `content_of` and `write_run`."""
    return write_run(run, content_of(tensors, config, progress, imported))


def restore_run(path: Path, tensors: RunTensors, *, resized: Collection[str] = ()) -> tuple[Progress, list[str]]:
    """Put a checkpoint's state into a run that was just built from the same config, on any number of ranks, by any plan.

    Args:
        path: the checkpoint.
        tensors: of the run.
        resized: ZCH tables that may have another number of rows than there.

    Returns:
        how far the run was, and what a user should know of what could not be kept.

    Raises:
        CheckpointError: a tensor is missing, surplus, or of another shape; names them.
    """
    folder, layout = path / store.TENSORS_NAME, read_layout(path)
    stored = describe_tensors(folder)
    shards = table_shards(tensors.sharded)
    problems = [*_routing_problems(layout), *check_sizes(tensors.model, stored, resized)]
    if problems:
        raise CheckpointError(f"{path} does not fit the model: {'; '.join(problems)}")
    grown = live_tables(tensors.sharded)
    own = {*table_state(shards), *id_map_names(tensors.model), *dynamic_names(grown), *tensors.dense(), names.generator_name(0)}
    _check_names(folder, stored, _from_all_ranks(own, tensors.group))
    moved = restore_id_maps(tensors.model, folder, stored, layout.zch_routing)
    restore_tables(folder, shards, stored, layout.columns, moved)
    dropped = restore_dynamic(grown, folder, layout.dynamic, dist.get_rank(), dist.get_world_size())
    load_tensors(folder, tensors.dense())
    _load_dense_optimizer(tensors.optimizer, read_tensors(folder, "dense_optim/"), path)
    progress = read_progress(path)
    restore_generators(folder, stored, tensors.sharded.device)
    return progress, [*_new_routings(tensors.model, layout), *_dropped(moved), *dropped]


def read_layout(path: Path) -> Layout:
    """How the tables lay when a checkpoint was written.

    Raises:
        CheckpointError: its manifest is not one that this release writes.
    """
    try:
        return Layout.of(store.read_checkpoint(path).notes.get("layout"))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path}: the layout in its manifest is not of this release: {error!r}") from error


def read_progress(path: Path) -> Progress:
    """How far the run was.

    Raises:
        CheckpointError: `state.json` is missing, or is not what this release writes.
    """
    data = store.read_json(path / store.STATE_NAME)
    try:
        files = data.get("files")
        if files is not None:
            files = {field: tuple(DataFile(**file) for file in listed) for field, listed in files.items()}
        times = tuple((int(step), int(time)) for step, time in data.get("times", ()))
        return Progress(**{**data, "files": files, "times": times})
    except (TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path / store.STATE_NAME} is not of this release: {error}") from error


def require_one_step(info: store.CheckpointInfo) -> None:
    """Refuse a checkpoint that no run can go on from: its parts are of several steps.

    Raises:
        CheckpointError: tells which.
    """
    step = info.notes.get(OTHER_PARTS_STEP)
    if step is not None:
        raise CheckpointError(
            f"{info.path} was made of increments: its tables that grow are of step {info.step}, everything else of step {step}. It can be evaluated, "
            "scored, exported, and begun with; go on from a checkpoint of the run itself"
        )


def package_versions() -> dict[str, str]:
    """Versions of the packages that decide what numbers come out."""
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _write_texts(draft: Path, path: Path, texts: Mapping[str, str]) -> None:
    try:
        for name, text in texts.items():
            (draft / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written: {error}") from error


@contextmanager
def _plain(path: Path, writing: AbstractContextManager[Path]) -> Iterator[None]:
    """An error of the file system as one of ours."""
    try:
        with writing:
            yield
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written: {error}") from error


def _routing_problems(layout: Layout) -> list[str]:
    known = " or ".join(map(repr, ROUTINGS))
    return [f"ids of table {table!r} were routed by {way!r}, not by {known}" for table, way in layout.zch_routing.items() if way not in ROUTINGS]


def _new_routings(model: RecModel, layout: Layout) -> list[str]:
    maps = zch_modules(model)
    before = {table: way for table, way in layout.zch_routing.items() if table in maps and way != maps[table].routing}
    return [f"table {table!r}: ids were routed by {way!r}, and are by {maps[table].routing!r} from now on" for table, way in before.items()]


def _dropped(moved: Mapping[str, NewShard]) -> list[str]:
    return [f"table {table!r}: {new.dropped} ids of this rank have no row any more" for table, new in moved.items() if new.dropped]


def _check_names(folder: Path, stored: Mapping[str, TensorInfo], expected: AbstractSet[str]) -> None:
    """Missing or surplus names, before anything is filled.

    The dense optimiser's state fills only as it steps, so it isn't expected; generators of other ranks may be there.
    """
    there = {name for name in stored if not name.startswith("dense_optim/")}
    problems = [f"{name} is missing" for name in sorted(expected - there)]
    problems += [f"{name} is not in the model" for name in sorted(there - expected) if not names.is_generator(name)]
    if problems:
        raise CheckpointError(f"{folder} does not fit the model: {'; '.join(problems)}")


def _from_all_ranks(own: set[str], group: dist.ProcessGroup | None) -> set[str]:
    """The names that any rank has."""
    if dist.get_world_size() == 1:
        return own
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, own, group=group)
    return set().union(*found)


def restore_generators(folder: Path, stored: Mapping[str, TensorInfo], device: torch.device) -> None:
    """Each rank's generators go on where they were; those of a rank that was not there begin at a place of their own."""
    name, first = names.generator_name(dist.get_rank()), names.generator_name(0)
    if name not in stored:
        digest = hashlib.sha256(read_tensors(folder, first)[first].numpy().tobytes() + name.encode()).digest()
        torch.manual_seed(int.from_bytes(digest[:8], "little") >> 1)
        return
    torch.set_rng_state(read_tensors(folder, name)[name])
    name = names.generator_name(dist.get_rank(), "cuda")
    if device.type == "cuda" and name in stored:
        torch.cuda.set_rng_state(read_tensors(folder, name)[name], device)


def _load_dense_optimizer(optimizer: ModelOptimizer, tensors: Mapping[str, Tensor], path: Path) -> None:
    state = names.split_dense_optimizer_tensors(tensors)
    try:
        optimizer.load_dense_state(state)
    except KeyError as error:
        raise CheckpointError(f"{path}: the dense optimiser has state for {error}, which is no parameter of the model") from error
