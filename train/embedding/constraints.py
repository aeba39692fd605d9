"""What a planner may choose for tables, and what is known about their traffic, as TorchRec knows it."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from torch import nn
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.modules.mc_embedding_modules import BaseManagedCollisionEmbeddingCollection

from emberline.train.embedding.jagged import feature_of_key
from emberline.train.embedding.registry import TableRegistry
from emberline.train.features import Feature
from emberline.train.features.placement import TableConstraints

ASSUMED_STEPS = 50
"""Steps of a sequence that neither its config nor data bounds."""
_COLLECTIONS = (EmbeddingBagCollection, EmbeddingCollection, BaseManagedCollisionEmbeddingCollection)


def pinned_ranks(constraints: ParameterConstraints) -> tuple[int, ...]:
    """The only ranks that may hold a table; none where it may be anywhere."""
    return constraints.ranks if isinstance(constraints, TableConstraints) else ()


def table_constraints(own: ParameterConstraints | None, readers: Sequence[Feature], weighted: bool, beside: bool = False) -> TableConstraints:
    """The constraints of one table, of whatever kind its features' are.

    Args:
        own: what its features say; None: nothing.
        readers: each feature that reads it, in the collection's order.
        weighted: whether its bags are weighted sums.
        beside: see `TableConstraints`.
    """
    asked: Any = TableConstraints() if own is None else own
    pairs = [_assumed_ids(reader) if reader.pooling_factor is None else (reader.pooling_factor, "config") for reader in readers]
    found: TableConstraints = replace(
        asked,
        pooling_factors=[ids for ids, _ in pairs],
        is_weighted=weighted,
        beside=beside,
        readers=tuple(reader.name for reader in readers),
        pooling_sources=tuple(source for _, source in pairs),
    )
    return found


def module_constraints(registry: TableRegistry, module: nn.Module, prefix: str = "") -> dict[str, ParameterConstraints]:
    """The constraints of all tables below a module, by full path: that of the collection that holds it, then its name.

    Args:
        registry: the tables and their readers.
        module: holds them in TorchRec's collections, unsharded.
        prefix: the module's own path.
    """
    found: dict[str, ParameterConstraints] = {}
    for name, child in module.named_children():
        path = f"{prefix}.{name}" if prefix else name
        if not isinstance(child, _COLLECTIONS):
            found.update(module_constraints(registry, child, path))
            continue
        for config in _configs(child):
            table = registry.table_by_name[config.name]
            readers = [registry.features[feature_of_key(key)] for key in config.feature_names]
            found[f"{path}.{config.name}"] = table_constraints(table.constraints, readers, table.by_weighted_sum, table.beside)
    return found


def _assumed_ids(feature: Feature) -> tuple[float, str]:
    """Ids a row of a feature that nobody counted: as many as fit where that is bounded, one a step or row else."""
    steps = (feature.spec.sequence_length or ASSUMED_STEPS) if feature.is_sequence else 1
    return float(steps * max(1, feature.value_dim)), "assumed"


def _configs(collection: nn.Module) -> Iterator[Any]:
    inner: Any = getattr(collection, "_embedding_module", collection)
    yield from inner.embedding_bag_configs() if hasattr(inner, "embedding_bag_configs") else inner.embedding_configs()
