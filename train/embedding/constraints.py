"""What a planner may choose for tables, and what is known about their traffic, as TorchRec knows it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.types import CacheParams
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.modules.mc_embedding_modules import BaseManagedCollisionEmbeddingCollection

from emberline.train.embedding.jagged import feature_of_key
from emberline.train.embedding.registry import TableRegistry
from emberline.train.features import EmbeddingConstraints, Feature

ASSUMED_STEPS = 50
"""Steps of a sequence that neither its config nor data bounds."""
MIB = 1 << 20
_COLLECTIONS = (EmbeddingBagCollection, EmbeddingCollection, BaseManagedCollisionEmbeddingCollection)


@dataclass
class TableConstraints(ParameterConstraints):  # type: ignore[misc]
    """What a planner may choose for one table, and what is known about its traffic.

    Args:
        ranks: the only ranks that may hold it; empty allows all.
        max_hbm: most bytes of it on one GPU; None: no bound.
        general: fields that are asked of all tables, and bind this one only where it can have them.
        beside: whether `sharding_types` are meant for a wider table of the same feature, and bind this one likewise.
        readers: names of the features that read it, in the order of `pooling_factors`.
        pooling_sources: where each of those comes from: `config`, `measured` or `assumed`.
    """

    ranks: tuple[int, ...] = ()
    max_hbm: int | None = None
    general: tuple[str, ...] = ()
    beside: bool = False
    readers: tuple[str, ...] = ()
    pooling_sources: tuple[str, ...] = ()

    @property
    def soft(self) -> frozenset[str]:
        """Fields that bind the table only where it can have them."""
        return frozenset(self.general) | ({"sharding_types"} if self.beside and self.sharding_types else set())

    def __hash__(self) -> int:
        return hash((super().__hash__(), self.ranks, self.max_hbm, self.general, self.beside, self.readers, self.pooling_sources))


def pinned_ranks(constraints: ParameterConstraints) -> tuple[int, ...]:
    """The only ranks that may hold a table; none where it may be anywhere."""
    return constraints.ranks if isinstance(constraints, TableConstraints) else ()


def table_constraints(constraints: EmbeddingConstraints | None, readers: Sequence[Feature], weighted: bool, beside: bool = False) -> TableConstraints:
    """The constraints of one table.

    Args:
        constraints: what its features say.
        readers: each feature that reads it, in the collection's order.
        weighted: whether its bags are weighted sums.
        beside: see `TableConstraints`.
    """
    asked = constraints or EmbeddingConstraints()
    pairs = [_assumed_ids(reader) if reader.pooling_factor is None else (reader.pooling_factor, "config") for reader in readers]
    return TableConstraints(
        sharding_types=list(asked.sharding_types) or None,
        compute_kernels=list(asked.compute_kernels) or None,
        min_partition=asked.min_partition,
        pooling_factors=[ids for ids, _ in pairs],
        cache_params=None if asked.cache_load_factor is None else CacheParams(load_factor=asked.cache_load_factor),
        is_weighted=weighted,
        ranks=asked.ranks,
        beside=beside,
        max_hbm=None if asked.max_hbm_mib is None else int(asked.max_hbm_mib * MIB),
        readers=tuple(reader.name for reader in readers),
        pooling_sources=tuple(source for _, source in pairs),
    )


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
