"""What a config makes, in lines for a terminal: no table is allocated, so one of any size answers at once."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from emberline.schema import LookupSpec
from emberline.serving.tables import TABLE_DTYPES
from emberline.text_table import columns
from emberline.train.config import PipelineConfig, load_config
from emberline.train.embedding import EmbeddingGroup, SequenceColumns, TableEntry
from emberline.train.embedding.columns import sequence_specs
from emberline.train.embedding.construct import dtype_name
from emberline.train.features import AutoDisConfig, Feature
from emberline.train.models.build import create_embedding_group, features_of
from emberline.train.optim import moments_of

NUMBER_BYTES = {name: dtype.itemsize for name, dtype in TABLE_DTYPES.items()}
"""Bytes of one number of a table."""
MOMENT_BYTES = 4
"""Bytes of one accumulator of the sparse optimiser: float32, whatever the table's type."""


def is_config(path: Path) -> bool:
    """Whether `path` is taken for a config: a file, or the name of one that is not there."""
    return path.is_file() or (path.suffix == ".pbtxt" and not path.exists())


def config_lines(path: Path) -> list[str]:
    """Tables, lookups, groups, embeddings of numbers, and the memory that the tables take.

    Raises:
        ConfigError: the file is no config, or a wrong one; with every problem found.
    """
    config = load_config(path)
    features = features_of(config)
    group = create_embedding_group(config, features, torch.device("meta"))
    tables = group.registry.tables
    model = f", model {config.model.name}" if config.model is not None else ""
    lines = [f"config {path}", f"  {len(features)} features, {len(config.feature_groups)} groups, {len(tables)} tables{model}"]
    lines += ["", *columns([("table", "kind", "rows", "dim", "type", "bytes", "read by"), *map(_table_row, tables)])]
    lookups = [*_lookup_rows("pooled", group.lookups), *_lookup_rows("per step", group.sequence_lookups)]
    lines += ["", *columns([("lookup", "result", "feature", "table", "pooling", "dim"), *lookups])]
    lines += ["", *columns([("group", "kind", "dim", "parts"), *_group_rows(group)])]
    lines += rounding_lines(dtype_name(group.output_dtype))
    embedded = [_embedded_row(feature) for feature in features if feature.dense_embedding is not None]
    if embedded:
        lines += ["", *columns([("embedded number", "by", "numbers", "dim"), *embedded])]
    return [*lines, "", *_memory_lines(config, tables), *(f"note: {note}" for note in config.notes)]


def rounding_lines(group_dtype: str) -> list[str]:
    """What a declared type of group tensors means; nothing for the usual float32."""
    return [] if group_dtype == "fp32" else [f"group tensors are rounded to {group_dtype}"]


def _table_row(table: TableEntry) -> tuple[str, ...]:
    spec = table.spec
    kind = spec.kind.value if table.trainable else f"{spec.kind.value}, frozen"
    rows = f"up to {spec.rows}" if table.raw_ids else str(spec.rows)
    return spec.name, kind, rows, str(spec.dim), spec.dtype, f"{_bytes(table):,}", ", ".join(table.features)


def _lookup_rows(result: str, lookups: Sequence[LookupSpec]) -> Iterator[tuple[str, ...]]:
    for lookup in lookups:
        pooling = lookup.pooling.value + (", weighted" if lookup.weighted else "")
        yield lookup.key, result, lookup.feature, lookup.table, pooling, str(lookup.dim)


def _group_rows(group: EmbeddingGroup) -> Iterator[tuple[str, ...]]:
    """Each tensor of each group, those of nested groups below the group that holds them."""
    registry = group.registry
    flat = {one.name for one in registry.groups}
    for name in registry.group_order:
        if name in flat:
            yield _group_row(group, name, group.group_type(name).value)
        for one in registry.sequence_groups:
            if name == (one.parent or one.name):
                yield from (_group_row(group, spec.name, _sequence_kind(one)) for spec in sequence_specs(one, group.streams) if spec.dim)


def _sequence_kind(group: SequenceColumns) -> str:
    return f"in {group.parent}" if group.parent else group.kind.value


def _group_row(group: EmbeddingGroup, key: str, kind: str) -> tuple[str, ...]:
    widths = group.group_feature_dims(key)
    return key, kind, str(sum(widths.values())), ", ".join(f"{name} {width}" for name, width in widths.items())


def _embedded_row(feature: Feature) -> tuple[str, ...]:
    method = "autodis" if isinstance(feature.dense_embedding, AutoDisConfig) else "mlp"
    return feature.name, method, str(feature.value_dim), str(feature.output_dim)


def _memory_lines(config: PipelineConfig, tables: Sequence[TableEntry]) -> list[str]:
    """Bytes of the tables, and of the moments that the sparse optimiser keeps for those that are trained; ids are not counted."""
    size = sum(map(_bytes, tables))
    growing = sum(_bytes(table) for table in tables if table.raw_ids)
    lines = [f"memory of tables: {_size(size)}" + (f", {_size(growing)} of it in dynamic ones once they are full" if growing else "")]
    moments = moments_of(config.train.sparse_optimizer.optimizer) if config.train is not None else ()
    if not moments:
        return lines
    numbers = sum(table.rows * (1 if moment.per_row else table.dim) for table in tables if table.trainable for moment in moments)
    kept = f"moments ({', '.join(moment.name + (' by row' if moment.per_row else '') for moment in moments)})"
    return [*lines, f"memory of {kept}: {_size(MOMENT_BYTES * numbers)}", f"memory of both: {_size(size + MOMENT_BYTES * numbers)}"]


def _bytes(table: TableEntry) -> int:
    return table.rows * table.dim * NUMBER_BYTES[table.dtype]


def _size(count: int) -> str:
    size, unit = float(count), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{count:,} bytes" if unit == "bytes" else f"{count:,} bytes ({size:.1f} {unit})"
