"""A trained model out of a checkpoint: unsharded, on the CPU, in eval mode."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from emberline.errors import CheckpointError, ConfigError
from emberline.schema import ModelSchema
from emberline.train.checkpoint import names, store
from emberline.train.checkpoint.configs import read_checkpoint_config
from emberline.train.checkpoint.dynamic_rows import open_rows
from emberline.train.checkpoint.id_maps import check_sizes, id_map_names, load_id_maps
from emberline.train.checkpoint.layout import Layout
from emberline.train.checkpoint.run_state import read_layout, read_progress
from emberline.train.checkpoint.stored_dynamic import FIXED_PARTS, PREFIX
from emberline.train.checkpoint.tensors import describe_tensors, load_tensors, read_tensors, require_fit
from emberline.train.config.pipeline import PipelineConfig
from emberline.train.embedding.collections import RowReader
from emberline.train.features import Feature
from emberline.train.models import RecModel, build_model, features_of

_MODEL_PREFIXES = ("tables/", "zch/", "dense/", PREFIX)


@dataclass(frozen=True)
class Trained:
    """A trained model and where it came from.

    Args:
        config: as it was when training began.
        features: made from it.
        model: whole, on the CPU, in eval mode, with the checkpoint's weights bit for bit; moving averages in place of dense parameters
            where the config has them used. Its tables may be on `meta`: then it reads their rows elsewhere.
        step: batches trained.
        path: the checkpoint's directory.
    """

    config: PipelineConfig
    features: tuple[Feature, ...]
    model: RecModel
    step: int
    path: Path


def load_trained(checkpoint: Path, step: int | None = None) -> Trained:
    """Read a model back; no process group is needed.

    Args:
        checkpoint: a run's directory, or one of its step-N directories.
        step: which checkpoint of a run; the newest where not given.

    Raises:
        CheckpointError: there is none, it is damaged, or it does not fit the model that its config describes.
    """
    return read_trained(store.verify_checkpoint(store.find_checkpoint(Path(checkpoint), step)))


def read_trained(info: store.CheckpointInfo, reader: RowReader | None = None) -> Trained:
    """Read the model of a checkpoint that was verified, or is being verified meanwhile.

    Args:
        info: the checkpoint.
        reader: reads rows of tables when the model needs them, which leaves its own tables on `meta`, without memory; None: all rows are read now.

    Raises:
        CheckpointError: it does not fit the model that its config describes, or a file cannot be read.
    """
    progress = read_progress(info.path)
    config = read_checkpoint_config(info.path)
    try:
        features = tuple(features_of(config))
        device = torch.device("meta") if reader is not None else None
        model = build_model(config, features, device, search_paths=[Path(progress.config_folder), Path()])
    except ConfigError as error:
        raise CheckpointError(f"{info.path}: its model cannot be built: {error}") from error
    _check_schema(model, info.path)
    layout = read_layout(info.path)
    if reader is None and names.growing_tables(model):
        reader = _reader(model, info.path / store.TENSORS_NAME, layout)
    if reader is not None:  # which empties id maps, so before they are filled
        model.embedding_group.read_rows_by(reader)
    _fill(model, info.path / store.TENSORS_NAME, layout)
    if config.uses_dense_ema:
        load_tensors(info.path / store.TENSORS_NAME, names.average_tensors(model))
    return Trained(config, features, model.eval(), info.step, info.path)


def _fill(model: RecModel, folder: Path, layout: Layout) -> None:
    into = {**names.table_tensors(model), **names.dense_tensors(model)}
    growing = {f"{PREFIX}{table}/{part}" for table in names.growing_tables(model) for part in FIXED_PARTS}
    expected, everything = {*into, *id_map_names(model), *growing}, describe_tensors(folder)
    stored = {name for name in everything if name.startswith(_MODEL_PREFIXES) and not _is_moment(name)}
    problems = check_sizes(model, everything)
    problems += [f"{name} is missing" for name in sorted(expected - stored)]
    problems += [f"{name} is not in the model" for name in sorted(stored - expected)]
    if problems:
        raise CheckpointError(f"{folder} does not fit the model: {'; '.join(problems)}")
    require_fit(folder, into)
    load_tensors(folder, {name: tensor for name, tensor in into.items() if not tensor.is_meta})
    load_id_maps(model, read_tensors(folder, "zch/"), layout.zch_routing)


def _reader(model: RecModel, folder: Path, layout: Layout) -> RowReader:
    """Reads rows of tables that grow out of the checkpoint's files, and those of others out of memory."""
    growing, weights = open_rows(folder, layout.dynamic), model.embedding_group.table_weights()

    def read(table: str, rows: Tensor) -> Tensor:
        return growing[table].take(rows) if table in growing else weights[table].detach()[rows]

    return read


def _is_moment(name: str) -> bool:
    if name.startswith(PREFIX):
        return name.rsplit("/", 1)[1] not in FIXED_PARTS
    return name.startswith("tables/") and not name.endswith("/weight")


def _check_schema(model: RecModel, path: Path) -> None:
    """What the config says today must be what was trained: this release may read it otherwise than the one that wrote it."""
    data = store.read_json(path / store.SCHEMA_NAME)
    try:
        saved = ModelSchema.from_dict(data)
    except ValueError as error:
        raise CheckpointError(f"{path / store.SCHEMA_NAME} is not of this release: {error}") from error
    built = model.schema()
    parts = ["features", "tables", "lookups", "groups", "outputs", "group_dtype", "sequence_lookups", "streams"]
    if "streams" not in data:  # of a release that told less of sequences
        parts = parts[:-2]
        built = replace(built, groups=tuple(replace(group, stream="") for group in built.groups if not group.is_lengths))
    different = [part for part in parts if getattr(built, part) != getattr(saved, part)]
    if different:
        raise CheckpointError(f"{path}: its config now gives other {', '.join(different)} than when it was trained")
