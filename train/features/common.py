"""What all families share: columns, data group, table."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from emberline.schema import INT64_MAX, Encoder, FeatureKind, FeatureSpec, Keep, TableKind
from emberline.train.dynamic.options import DynamicEmbOptions
from emberline.train.features.configs import CommonFeatureConfig, DenseEmbeddingConfig, SplitFeatureConfig, ZchConfig
from emberline.train.features.constraints import constraint_problems, of_table
from emberline.train.features.expression import read_expression, side_of
from emberline.train.features.feature import BASE_DATA_GROUP, Feature
from emberline.train.features.inputs import Inputs
from emberline.train.features.names import table_name_problem
from emberline.train.features.sentences import Absence, unknown_name

RAW_SEPARATOR = "\x1d"
"""Splits a text of several raw values where a feature has no separator of its own."""

DTYPES = {"FP32": "fp32", "FP16": "fp16", "BF16": "bf16"}

MOST_VALUES = 2**20
"""Most values of a row or step."""

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Steps:
    """What makes a feature a sequence.

    Args:
        name: of the grouped sequence that it belongs to; empty for one by itself.
        length: most steps that are kept; 0: all.
        separator: what is between two steps of a text.
        keep: which steps of a longer sequence are kept.
        of_tokens: the steps are the tokens of one text.
    """

    name: str
    length: int
    separator: str
    keep: Keep
    of_tokens: bool = False


@dataclass(frozen=True, kw_only=True)
class Context:
    """What holds for a feature besides its own config.

    Args:
        neg_fields: columns that a negative sampler fills.
        encoded: whether the data's values are ids and floats already.
        encoded_separator: splits a text of several values where they are.
        steps: what makes it a sequence; None for what is none.
    """

    neg_fields: frozenset[str]
    encoded: bool
    encoded_separator: str
    steps: Steps | None = None


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a feature's values come from: as the fields of `FeatureSpec` and `Feature` of these names."""

    columns: tuple[str, ...]
    row_columns: tuple[str, ...]
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


def source(config: CommonFeatureConfig, inputs: Inputs, context: Context, problems: list[str]) -> Source:
    """The feature's columns: those of its inputs, or the one called like it where the data is encoded already."""
    read = [attempt(problems, read_expression, text, context.encoded) or ("", "") for text in inputs.texts]
    columns, row_columns = _columns(config, inputs, read, context, problems)
    grouped = context.steps is not None and context.steps.name
    sampled = context.neg_fields.intersection(columns)
    return Source(
        columns=columns,
        row_columns=row_columns,
        side="item" if sampled else "user" if grouped else side_of([text.rpartition(":")[0].strip() for text in inputs.texts]),
        data_group=inputs.neg_group if sampled else BASE_DATA_GROUP,
        separator=_separator(config, context, problems),
    )


def _columns(
    config: CommonFeatureConfig, inputs: Inputs, read: list[tuple[str, str]], context: Context, problems: list[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """All columns, and those that have no steps in a sequence."""
    names = [column for _, column in read]
    if context.steps is None:
        return tuple(names) if names and not context.encoded else (config.feature_name,), ()
    known = names or [config.feature_name]
    problems += [f"sequence_fields: {name!r} is none of its raw columns, {', '.join(known)}" for name in config.sequence_fields if name not in known]
    if context.encoded or not names:
        return (config.feature_name,), ()
    if config.sequence_fields:
        stepped = [name in config.sequence_fields for name in names]
    elif context.steps.name and not inputs.is_single:
        stepped = [side == "item" for side, _ in read]
    else:
        stepped = [True] * len(names)
    if not any(stepped):
        problems.append("has no raw column with steps; list those that have in sequence_fields")
    prefix = f"{context.steps.name}__" if context.steps.name else ""
    columns = tuple(f"{prefix}{name}" if has_steps else name for name, has_steps in zip(names, stepped, strict=True))
    return columns, tuple(name for name, has_steps in zip(names, stepped, strict=True) if not has_steps)


def _separator(config: CommonFeatureConfig, context: Context, problems: list[str]) -> str:
    own = config.separator if isinstance(config, SplitFeatureConfig) else None
    if own == "":
        problems.append("separator must not be empty")
    return context.encoded_separator if context.encoded else (RAW_SEPARATOR if own is None else own)


def assemble(
    config: CommonFeatureConfig,
    where: Source,
    context: Context,
    *,
    encoder: Encoder,
    value_dim: int,
    default: str | None,
    rows: int = 0,
    zch: ZchConfig | None = None,
    dynamicemb: DynamicEmbOptions | None = None,
    weighted: bool = False,
    dense_embedding: DenseEmbeddingConfig | None = None,
) -> Feature:
    """The feature: one that reads a table where `rows` is above 0, else numbers.

    Args:
        config: its own.
        where: what it reads.
        context: what else holds.
        encoder: from raw or encoded values to ids or numbers.
        value_dim: values a row or step.
        default: used for a missing raw value, as the config has it; "" and None mean none.
        rows: of the table.
        zch: its id map.
        dynamicemb: how it grows.
        weighted: whether ids have weights.
        dense_embedding: of numbers.
    """
    steps = context.steps
    default = config.fg_encoded_default_value if context.encoded else default or None
    spec = FeatureSpec(
        name=config.feature_name,
        kind=FeatureKind.SPARSE if rows else FeatureKind.DENSE,
        columns=where.columns,
        encoder=encoder,
        side=where.side,
        value_dim=value_dim,
        weighted=weighted,
        separator=where.separator,
        default=default,
        encoded=context.encoded,
        sequence=steps is not None,
        sequence_length=steps.length if steps else 0,
        keep=steps.keep if steps else Keep.NEWEST,
        step_separator=steps.separator if steps else ";",
        row_columns=where.row_columns,
    )
    name, sequence_name = config.feature_name, steps.name if steps else ""
    if not rows:
        width = config.embedding_dim if dense_embedding is not None else 0
        return Feature(
            name=name,
            spec=spec,
            data_group=where.data_group,
            embedding_dim=width,
            dense_embedding=dense_embedding,
            sequence_name=sequence_name,
        )
    return Feature(
        name=name,
        spec=spec,
        data_group=where.data_group,
        embedding_dim=config.embedding_dim,
        embedding_name=config.embedding_name or f"{name}_emb",
        rows=rows,
        pooling=config.pooling,
        init=config.init_fn,
        dtype=DTYPES[config.data_type],
        trainable=config.trainable,
        zch=zch,
        dynamicemb=dynamicemb,
        constraints=of_table(config.embedding_constraints),
        pooling_factor=config.embedding_constraints.pooling_factor if config.embedding_constraints is not None else None,
        sequence_name=sequence_name,
    )


def check_table(config: CommonFeatureConfig, kind: TableKind, problems: list[str]) -> None:
    """What a feature that reads a table must have."""
    if config.embedding_dim < 1:
        problems.append(Absence("embedding_dim must be set, to 1 or more: the width of its table"))
    if config.embedding_name and (found := table_name_problem(config.embedding_name)):
        problems.append(f"embedding_name {found}")
    if config.data_type not in DTYPES:
        problems.append(unknown_name("data_type", config.data_type, DTYPES))
    if config.embedding_constraints is not None:
        problems += [f"embedding_constraints: {text}" for text in constraint_problems(config.embedding_constraints, kind)]


def check_count(name: str, value: int, least: int, problems: list[str]) -> None:
    """A whole number that counts something must be within [least, 2^63 - 1]."""
    if not least <= value <= INT64_MAX:
        problems.append(f"{name} must be at least {least} and below 2^63, found {value}")


def check_value_dim(value: int, least: int, problems: list[str]) -> None:
    """Values a row or step must be of a number that memory can hold: at most 2^20."""
    check_count("value_dim", value, least, problems)
    if value > MOST_VALUES:
        problems.append(f"value_dim must be at most {MOST_VALUES}, found {value}")
