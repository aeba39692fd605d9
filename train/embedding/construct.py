"""The modules of a model's groups, apart from tables: layouts with their dense embeddings, and encoders."""

from collections.abc import Sequence
from typing import cast

import torch
from torch import nn

from emberline.errors import ConfigError
from emberline.train.config.functions import InitSpec
from emberline.train.embedding.layout import EmbeddingGroupImpl, SequenceEmbeddingGroupImpl
from emberline.train.embedding.registry import TableRegistry
from emberline.train.encoders import Encoder, build_encoder

ENCODERS_OF = "of_"
"""Keeps the names of groups apart from those of nn.ModuleDict itself."""

OUTPUT_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
"""What the tensors of groups may be, by the names that a config and a schema have for it."""


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a type that the tensors of groups may have.

    Raises:
        ConfigError: it is none.
    """
    for name, known in OUTPUT_DTYPES.items():
        if known == dtype:
            return name
    raise ConfigError(f"output_dtype must be one of {', '.join(map(str, OUTPUT_DTYPES.values()))}, found {dtype}")


def build_impl(registry: TableRegistry, data_group: str, device: torch.device | None) -> EmbeddingGroupImpl:
    """The DEEP and WIDE groups of a data group."""
    groups = [group for group in registry.groups if group.data_group == data_group]
    queries = [name for group in registry.sequence_groups if group.data_group == data_group for name in group.query.dense_features]
    return EmbeddingGroupImpl(groups, registry.features, device, queries)


def build_sequence_impl(registry: TableRegistry, data_group: str, device: torch.device | None) -> SequenceEmbeddingGroupImpl | None:
    """The SEQUENCE and JAGGED_SEQUENCE groups of a data group, nested ones included; None where there are none."""
    groups = [group for group in registry.sequence_groups if group.data_group == data_group]
    return SequenceEmbeddingGroupImpl(groups, registry.features, device) if groups else None


def build_encoders(registry: TableRegistry, device: torch.device | None) -> dict[str, nn.ModuleList]:
    """The encoders of each DEEP group that has some, by ENCODERS_OF and its name.

    Raises:
        ConfigError: with everything that is wrong with any of them; names the group.
    """
    inputs = {group.name: group for group in registry.sequence_groups}
    found: dict[str, nn.ModuleList] = {}
    problems: list[str] = []
    for group in registry.groups:
        for config in group.encoders:
            source = inputs[config.input]
            try:
                encoder = build_encoder(config, source.query.dim, source.sequence.dim)
            except ConfigError as error:
                problems += [f"feature group {group.name!r}: {problem}" for problem in error.problems]
            else:
                found.setdefault(ENCODERS_OF + group.name, nn.ModuleList()).append(encoder.to(device))
    if problems:
        raise ConfigError(problems)
    return found


def output_dims(encoders: Sequence[nn.Module]) -> list[int]:
    """The width of each encoder's output."""
    return [cast(Encoder, encoder).output_dim for encoder in encoders]


def read_init(init: InitSpec | str | None, where: str) -> InitSpec | None:
    """An initialiser given as text or spec.

    Args:
        init: `nn.init.zeros_`, or such.
        where: for the message.

    Raises:
        ConfigError: the text names no initialiser.
    """
    if not isinstance(init, str):
        return init
    try:
        return InitSpec.parse(init)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from error
