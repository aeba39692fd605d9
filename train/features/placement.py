"""What a planner may choose for tables, as TorchRec knows it: its own constraints with what ours say beyond them."""

from dataclasses import dataclass

from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.types import CacheParams

from emberline.train.dynamic.options import DynamicEmbOptions
from emberline.train.features.configs import EmbeddingConstraints

MIB = 1 << 20
CUSTOMIZED_KERNEL = "customized_kernel"
"""TorchRec's name for kernels that are not its own."""


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


@dataclass
class DynamicEmbParameterConstraints(TableConstraints):
    """The constraints of a dynamic table, which is sharded by hashes of ids over all ranks, in a kernel of its own.

    Args:
        use_dynamicemb: the mark.
        dynamicemb_options: how it grows; the planner adds where its rows are.
    """

    use_dynamicemb: bool = True
    dynamicemb_options: DynamicEmbOptions | None = None

    def __hash__(self) -> int:
        return hash((super().__hash__(), self.use_dynamicemb, self.dynamicemb_options))


def asked_of(constraints: EmbeddingConstraints) -> TableConstraints:
    """What a config asks of a table's place."""
    return TableConstraints(
        sharding_types=list(constraints.sharding_types) or None,
        compute_kernels=list(constraints.compute_kernels) or None,
        min_partition=constraints.min_partition,
        cache_params=None if constraints.cache_load_factor is None else CacheParams(load_factor=constraints.cache_load_factor),
        ranks=constraints.ranks,
        max_hbm=_bytes(constraints.max_hbm_mib),
    )


def dynamic_constraints(options: DynamicEmbOptions, constraints: EmbeddingConstraints | None) -> DynamicEmbParameterConstraints:
    """Those of a dynamic table.

    Args:
        options: how it grows.
        constraints: what its features ask for; of a dynamic table's place that is its memory alone.
    """
    return DynamicEmbParameterConstraints(
        sharding_types=["row_wise"],
        compute_kernels=[CUSTOMIZED_KERNEL],
        max_hbm=None if constraints is None else _bytes(constraints.max_hbm_mib),
        dynamicemb_options=options,
    )


def _bytes(mib: float | None) -> int | None:
    return None if mib is None else int(mib * MIB)
