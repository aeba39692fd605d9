"""Every example trains two steps on made rows of its own columns, and what was trained is read back."""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from emberline.schema import (
    BoundaryEncoder,
    BucketEncoder,
    CrossEncoder,
    FeatureSpec,
    HashEncoder,
    NumericEncoder,
    Pooling,
    RawIdEncoder,
    VocabEncoder,
)
from emberline.train.checkpoint import load_trained
from emberline.train.config import PipelineConfig, load_config
from emberline.train.config.model_config import L2LossConfig
from emberline.train.data import DataReader
from emberline.train.features import Feature
from emberline.train.job import run_training
from emberline.train.models import features_of
from emberline.train.models.create_tasks import create_tasks
from emberline.train.models.tasks import MatchTask, Task

pytestmark = [pytest.mark.filterwarnings("ignore:The given NumPy array is not writable"), pytest.mark.usefixtures("one_thread")]

EXAMPLES = sorted((Path(__file__).resolve().parent.parent / "examples").glob("*.pbtxt"))
BATCH, ROWS = 16, 32
SMALL_TABLE = 500
EMPTY_ROW, LONG_ROW, MISSING_ROW = 1, 2, 3
"""Rows whose sequences have no steps, whose sequences have more than are kept, and where single values are missing."""


def replaced(text: str, pattern: str, by: str) -> str:
    """The text with the one place that the pattern fits replaced."""
    found, count = re.subn(pattern, lambda _: by, text, flags=re.MULTILINE)
    assert count == 1, (pattern, count)
    return found


def small_copy(path: Path, folder: Path) -> PipelineConfig:
    """An example that reads files of `folder`, with small batches, small tables and two steps; all else is as it was written."""
    text = path.read_text()
    for name in ("train", "eval"):
        text = replaced(text, rf'^{name}_input_path: ".*"', f'{name}_input_path: "{folder}/{name}.parquet"')
    text = replaced(text, r"^  batch_size: \d+", f"  batch_size: {BATCH}")
    text = replaced(text, r"^  eval_batch_size: \d+", f"  eval_batch_size: {ROWS}")
    text = replaced(text, r"^train_config \{", "train_config {\n  num_steps: 2\n  use_tensorboard: false")
    if "negative_sampler" in text:
        text = replaced(text, r'^    input_path: ".*"', f'    input_path: "{folder}/items.parquet"')
        text = re.sub(r"(num_\w*sample): \d+", r"\1: 5", text)
    text = re.sub(r"hash_bucket_size: (\d+)", lambda found: f"hash_bucket_size: {min(int(found[1]), SMALL_TABLE)}", text)
    copy = folder / path.name
    copy.write_text(text)
    return load_config(copy)


def values_of(spec: FeatureSpec, count: int, generator: np.random.Generator) -> list[Any]:
    """So many raw values, of the type that the feature's encoder reads."""
    match spec.encoder:
        case HashEncoder() | CrossEncoder():
            return [f"word {number}" for number in generator.integers(0, 10_000, count)]
        case RawIdEncoder():
            return [int(number) for number in generator.integers(-(2**62), 2**62, 20)[generator.integers(0, 20, count)]]
        case BucketEncoder(rows=rows):
            return [int(number) for number in generator.integers(0, rows, count)]
        case VocabEncoder(words=words):
            return [words[number] for number in generator.integers(0, len(words), count)]
        case BoundaryEncoder(boundaries=boundaries):
            return [float(number) for number in generator.uniform(boundaries[0] - 1, boundaries[-1] + 1, count)]
        case NumericEncoder():
            return [float(number) for number in generator.uniform(0, 30, count)]
    raise AssertionError(f"{spec.name}: this test makes no values for {spec.encoder}")


def row_lengths(feature: Feature, lengths: Sequence[int]) -> Sequence[int] | None:
    """Values in each row; None: one, and no list."""
    spec = feature.spec
    assert not spec.weighted, f"{spec.name}: this test makes no weights"
    assert not spec.row_columns, f"{spec.name}: this test makes no columns without steps for sequences"
    if spec.sequence:
        most = spec.sequence_length or 5
        return [0 if row == EMPTY_ROW else most + 3 if row == LONG_ROW else length for row, length in enumerate(lengths)]
    if spec.value_dim > 1:
        return [spec.value_dim] * len(lengths)
    several = feature.is_sparse and feature.pooling is Pooling.MEAN and not isinstance(spec.encoder, CrossEncoder)
    return lengths if several else None


def make_columns(features: Sequence[Feature], generator: np.random.Generator) -> dict[str, pa.Array]:
    """The raw columns of the features. Steps of all sequences are as many, so that those of one group belong together."""
    lengths = generator.integers(0, 5, ROWS).tolist()
    columns: dict[str, pa.Array] = {}
    for feature in features:
        counts = row_lengths(feature, lengths)
        for name in feature.spec.columns:
            if name in columns:
                continue
            values = values_of(feature.spec, ROWS if counts is None else sum(counts), generator)
            if counts is None:
                columns[name] = pa.array([None if row == MISSING_ROW else value for row, value in enumerate(values)])
            else:
                columns[name] = pa.ListArray.from_arrays(pa.array([0, *np.cumsum(counts).tolist()], pa.int32()), pa.array(values))
    return columns


def labels_of(task: Task, generator: np.random.Generator) -> pa.Array:
    """Ones and zeros, classes, or numbers."""
    if not isinstance(task, MatchTask):
        if any(isinstance(loss, L2LossConfig) for loss in task.losses):
            return pa.array(generator.normal(size=ROWS).astype(np.float32))
        if task.num_class > 1:
            return pa.array(np.arange(ROWS) % task.num_class)
    return pa.array(np.arange(ROWS) % 2)


def write_rows(config: PipelineConfig, features: Sequence[Feature], path: Path, seed: int) -> None:
    generator = np.random.default_rng(seed)
    labels = {task.label: labels_of(task, generator) for task in create_tasks(config)}
    pq.write_table(pa.table({**make_columns(features, generator), **labels}), path)


def write_items(config: PipelineConfig, features: Sequence[Feature], path: Path) -> None:
    """A table of items, where the config draws some."""
    sampler = config.data.negative_sampler
    if sampler is not None:
        columns = make_columns(features, np.random.default_rng(9))
        items = {name: columns[name] for name in sampler.fields}
        items[sampler.item_id_field] = pa.array([f"item {number}" for number in range(ROWS)])
        pq.write_table(pa.table({**items, sampler.weight_field: np.arange(ROWS)}), path)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_it_trains_and_is_read_back(path: Path, tmp_path: Path) -> None:
    config = small_copy(path, tmp_path)
    features = features_of(config)
    for seed, name in enumerate(("train", "eval")):
        write_rows(config, features, tmp_path / f"{name}.parquet", seed)
    write_items(config, features, tmp_path / "items.parquet")
    result = run_training(config, tmp_path / "run")
    assert result.step == 2
    assert math.isfinite(result.loss)
    assert result.metrics
    assert all(math.isfinite(number) for number in result.metrics.values()), result.metrics

    trained = load_trained(tmp_path / "run")
    assert trained.step == 2
    batch = next(iter(DataReader(trained.config.data, trained.features, f"{tmp_path}/eval.parquet", batch_size=ROWS, with_labels=False)))
    with torch.no_grad():
        outputs = trained.model(batch)
    specs = trained.model.schema().outputs
    assert {name: tuple(tensor.shape) for name, tensor in outputs.items()} == {
        spec.name: (ROWS, spec.width) if spec.width else (ROWS,) for spec in specs
    }
    assert all(bool(tensor.isfinite().all()) for tensor in outputs.values())


def test_they_show_every_model_and_kind_of_table(said: list[str]) -> None:
    configs = [load_config(path) for path in EXAMPLES]
    assert {config.need_model().name for config in configs} >= {"dlrm", "deepfm", "multi_tower_din", "dssm", "mmoe"}
    features = [feature for config in configs for feature in features_of(config)]
    assert any(feature.zch for feature in features)
    assert any(feature.dense_embedding for feature in features)
    assert {feature.name.split("__")[0] for feature in features if feature.spec.sequence} >= {"click", "buy", "history"}
    said.append(f"examples: {len(EXAMPLES)} configs train")
