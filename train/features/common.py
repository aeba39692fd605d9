"""What all families share: columns, data group, table."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from emberline.schema import INT64_MAX
from emberline.train.features.configs import CommonFeatureConfig, EmbeddingConstraints
from emberline.train.features.expression import common_side, read_expression
from emberline.train.features.feature import BASE_DATA_GROUP
from emberline.train.features.names import table_name_problem
from emberline.train.features.sentences import Absence, unknown_name

RAW_SEPARATOR = "\x1d"
"""Splits a text of several raw values where a feature has no separator of its own."""

DTYPES = {"FP32": "fp32", "FP16": "fp16", "BF16": "bf16"}
SHARDING_TYPES = ("data_parallel", "table_wise", "column_wise", "row_wise", "table_row_wise", "table_column_wise", "grid_shard")
COMPUTE_KERNELS = ("dense", "fused", "fused_uvm", "fused_uvm_caching", "key_value")
_PLANNED_KERNEL = "fused"

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Context:
    """What holds for all features of a config."""

    neg_fields: frozenset[str]
    encoded: bool
    encoded_separator: str


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a feature's values come from."""

    columns: tuple[str, ...]
    side: str
    data_group: str
    separator: str


def attempt(problems: list[str], function: Callable[..., T], *arguments: object) -> T | None:
    """The function's result, or None with its error noted."""
    try:
        return function(*arguments)
    except ValueError as error:
        problems.append(str(error))
        return None


def source(config: CommonFeatureConfig, expressions: Sequence[str], neg_group: str, context: Context, problems: list[str]) -> Source:
    """The feature's columns: those of its expressions, or the one called like it where the data is encoded already."""
    read = [attempt(problems, read_expression, text) or ("", "") for text in expressions]
    if context.encoded or not expressions:
        columns: tuple[str, ...] = (config.feature_name,)
    else:
        columns = tuple(column for _, column in read)
    return Source(
        columns=columns,
        side=common_side([side for side, _ in read]),
        data_group=neg_group if context.neg_fields.intersection(columns) else BASE_DATA_GROUP,
        separator=_separator(config.separator, context, problems),
    )


def _separator(own: str | None, context: Context, problems: list[str]) -> str:
    if own == "":
        problems.append("separator must not be empty")
    return context.encoded_separator if context.encoded else (RAW_SEPARATOR if own is None else own)


def check_table(config: CommonFeatureConfig, is_zch: bool, problems: list[str]) -> None:
    """What a feature that reads a table must have."""
    if config.embedding_dim < 1:
        problems.append(Absence("embedding_dim must be set, to 1 or more: the width of its table"))
    if config.embedding_name and (found := table_name_problem(config.embedding_name)):
        problems.append(f"embedding_name {found}")
    if config.data_type not in DTYPES:
        problems.append(unknown_name("data_type", config.data_type, DTYPES))
    if config.embedding_constraints is not None:
        _check_constraints(config.embedding_constraints, is_zch, problems)


def _check_constraints(constraints: EmbeddingConstraints, is_zch: bool, problems: list[str]) -> None:
    """Constraints must allow what this version does; there is no planner yet that could choose."""
    found = len(problems)
    problems += [
        f"embedding_constraints: {unknown_name('sharding type', name, SHARDING_TYPES)}"
        for name in constraints.sharding_types
        if name not in SHARDING_TYPES
    ]
    problems += [
        f"embedding_constraints: {unknown_name('compute kernel', name, COMPUTE_KERNELS)}"
        for name in constraints.compute_kernels
        if name not in COMPUTE_KERNELS
    ]
    if len(problems) > found:
        return
    planned = "row_wise" if is_zch else "table_wise"
    if constraints.sharding_types and planned not in constraints.sharding_types:
        problems.append(f"embedding_constraints: sharding_types must allow {planned}; other shardings of this table are not supported yet")
    if constraints.compute_kernels and _PLANNED_KERNEL not in constraints.compute_kernels:
        problems.append(f"embedding_constraints: compute_kernels must allow {_PLANNED_KERNEL}; other kernels are not supported yet")


def check_count(name: str, value: int, least: int, problems: list[str]) -> None:
    """A whole number that counts something must be within [least, 2^63 - 1]."""
    if not least <= value <= INT64_MAX:
        problems.append(f"{name} must be at least {least} and below 2^63, found {value}")
