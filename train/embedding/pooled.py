"""All pooled reads of a model: bags of ids -> one matrix.

Tables live in at most four TorchRec collections: pooled plainly or by weighted sums, ids as rows or zero-collision hashing. Each is a module of
its own, so that `DistributedModelParallel` finds and shards it; unsharded, the bags are pooled here, table by table.

A frozen table's weight needs no gradient. Fused kernels update whatever they hold, so give such tables a rate of 0 before sharding.

Letters: B rows, P summed width of all lookups, d width of one.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchrec.distributed.types import Awaitable
from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.modules.mc_embedding_modules import ManagedCollisionEmbeddingBagCollection
from torchrec.modules.mc_modules import ManagedCollisionCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from emberline.schema import LookupSpec, Pooling
from emberline.train.embedding.initial import table_init
from emberline.train.embedding.jagged import KEY_SEPARATOR, check_rows, one_empty_row, pick, with_sum_weights, without_weights
from emberline.train.embedding.registry import TableEntry, TableRegistry
from emberline.train.zch import RowResetCallback, ZchModule, build_policy, install_row_resets, reset_vectors, zch_modules


class PooledTables(nn.Module):
    """Every table of a model, and the pooled reads of them.

    Args:
        registry: tables and lookups.
        device: where the tables live; None means torch's default.
    """

    def __init__(self, registry: TableRegistry, device: torch.device | None = None) -> None:
        super().__init__()
        self.lookups = registry.lookups
        self.tables = registry.table_by_name
        self._inits = {table.name: table_init(table.init, table.rows, table.dim) for table in registry.tables}
        self.ebc = self._collection(zch=False, weighted=False, device=device)
        self.weighted_ebc = self._collection(zch=False, weighted=True, device=device)
        self.mc_ebc = self._collection(zch=True, weighted=False, device=device)
        self.weighted_mc_ebc = self._collection(zch=True, weighted=True, device=device)
        self.initial_moment = 0.0
        self._row_reset_callbacks: list[RowResetCallback] = []
        self._untrained: dict[str, int] = {}
        self.mark_untrained()

    def forward(self, kjt: KeyedJaggedTensor) -> Tensor:
        """Bags of all features that a table reads -> pooled vectors [B, P] float32, columns in the order of `lookups`."""
        parts = []
        for name in ("ebc", "weighted_ebc", "mc_ebc", "weighted_mc_ebc"):
            module, zch, weighted = getattr(self, name), "mc" in name, "weighted" in name
            if module is not None:
                lookups = self._lookups_of(zch, weighted)
                bags = self._bags(kjt, lookups, zch, weighted)
                parts.append(self._pool_unsharded(module, bags, lookups) if _is_unsharded(module) else self._pool_sharded(module, bags, lookups))
        if not parts:
            return torch.zeros(kjt.stride(), 0, device=kjt.values().device)
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def table_weights(self) -> dict[str, nn.Parameter]:
        """The tables' parameters [rows, dim] by name; only before sharding."""
        modules = [_bag_collection(module) for module in self._modules.values() if module is not None]
        return {table: bag.weight for module in modules for table, bag in module.embedding_bags.items()}

    def mark_untrained(self) -> None:
        """Take the tables' present values for initial ones: until they change, rows that change owner keep theirs."""
        self._untrained = {table: weight._version for table, weight in self.table_weights().items() if self.tables[table].zch is not None}

    def on_row_reset(self, callback: RowResetCallback) -> None:
        """Have `callback` called after rows of an unsharded table were started afresh."""
        self._row_reset_callbacks.append(callback)

    def _lookups_of(self, zch: bool, weighted: bool) -> list[LookupSpec]:
        def belongs(table: TableEntry) -> bool:
            return (table.zch is not None) == zch and table.by_weighted_sum == weighted

        return [lookup for lookup in self.lookups if belongs(self.tables[lookup.table])]

    def _collection(self, *, zch: bool, weighted: bool, device: torch.device | None) -> Any:
        lookups = self._lookups_of(zch, weighted)
        if not lookups:
            return None
        names = dict.fromkeys(lookup.table for lookup in lookups)
        configs = [_bag_config(self.tables[name], [_bag_key(look) for look in lookups if look.table == name], self._inits[name]) for name in names]
        collection = EmbeddingBagCollection(tables=configs, is_weighted=weighted, device=device)
        for name, bag in collection.embedding_bags.items():
            bag.weight.requires_grad_(self.tables[name].trainable)
        if not zch:
            return collection
        maps = {name: _zch_module(self.tables[name], collection.device) for name in names}
        mapping = ManagedCollisionCollection(maps, configs, need_preprocess=False)
        return ManagedCollisionEmbeddingBagCollection(collection, mapping)

    def _bags(self, kjt: KeyedJaggedTensor, lookups: Sequence[LookupSpec], zch: bool, weighted: bool) -> KeyedJaggedTensor:
        bags = pick(kjt, [lookup.feature for lookup in lookups], [_bag_key(lookup) for lookup in lookups])
        if not zch:
            check_rows(bags, [self.tables[lookup.table].rows for lookup in lookups])
        if weighted:
            return with_sum_weights(bags, [lookup.pooling is Pooling.MEAN for lookup in lookups])
        return without_weights(bags)

    def _pool_unsharded(self, module: nn.Module, bags: KeyedJaggedTensor, lookups: Sequence[LookupSpec]) -> Tensor:
        if isinstance(module, ManagedCollisionEmbeddingBagCollection):
            bags = module._managed_collision_collection(bags)
            self._reset_rows(module)
        tables = {table: bag.weight for table, bag in _bag_collection(module).embedding_bags.items()}
        ends, weights = bags.offset_per_key(), bags.weights_or_none()
        starts = functional.pad(bags.lengths().view(len(lookups), bags.stride()).cumsum(1), (1, 0))
        columns = []
        for place, lookup in enumerate(lookups):
            ids = slice(ends[place], ends[place + 1])
            mean = lookup.pooling is Pooling.MEAN and weights is None
            columns.append(pool(tables[lookup.table], bags.values()[ids], starts[place], weights[ids] if weights is not None else None, mean=mean))
        return torch.cat(columns, dim=1)

    def _pool_sharded(self, module: nn.Module, bags: KeyedJaggedTensor, lookups: Sequence[LookupSpec]) -> Tensor:
        if bags.stride() == 0:  # the row-wise kernels' divisors refuse it
            return self._pool_sharded(module, one_empty_row(bags), lookups)[:0]
        if hasattr(module, "_managed_collision_collection"):
            inits = {table: self._inits[table] for table, entry in self.tables.items() if entry.trainable}
            install_row_resets(module, inits, self.initial_moment)
            pooled, _ = module(bags)
        else:
            pooled = module(bags)
        if isinstance(pooled, Awaitable):
            pooled = pooled.wait()
        wanted = [_bag_key(lookup) for lookup in lookups]
        values: Tensor = pooled.values()
        if pooled.keys() == wanted:
            return values
        columns = dict(zip(pooled.keys(), torch.split(values, pooled.length_per_key(), dim=1), strict=True))
        return torch.cat([columns[key] for key in wanted], dim=1)

    def _reset_rows(self, module: nn.Module) -> None:
        """Start rows afresh whose owner changed, in tables that were trained since their values counted as initial."""
        weights = {table: bag.weight for table, bag in _bag_collection(module).embedding_bags.items()}
        for table, zch in zch_modules(module).items():
            rows, weight = zch.take_rows_to_reset(), weights[table]
            if rows is None or not self.tables[table].trainable or self._untrained.get(table) == weight._version:
                continue
            reset_vectors(weight, rows, self._inits[table])
            for callback in self._row_reset_callbacks:
                callback(table, weight, rows)


def pool(table: Tensor, ids: Tensor, starts: Tensor, weights: Tensor | None = None, *, mean: bool = False) -> Tensor:
    """One table's bags as vectors, in float32 whatever the table's type.

    Args:
        table: [rows, d].
        ids: int64 [N].
        starts: [B + 1], where each bag begins in `ids`, and the end.
        weights: float32 [N], for a weighted sum; None for a plain one.
        mean: divide each sum by the bag's length; only without weights.

    Returns:
        [B, d] float32; zeros for empty bags.
    """
    assert weights is None or not mean
    if table.dtype != torch.float32:
        table, ids = functional.embedding(ids, table).float(), torch.arange(ids.numel(), device=ids.device)
    mode = "mean" if mean else "sum"
    if starts.numel() == 1:  # no rows: torch refuses that, and a batch of one empty bag keeps the gradient's path
        return functional.embedding_bag(ids, table, starts.new_zeros(2), mode=mode, per_sample_weights=weights, include_last_offset=True)[:0]
    return functional.embedding_bag(ids, table, starts, mode=mode, per_sample_weights=weights, include_last_offset=True)


def _bag_key(lookup: LookupSpec) -> str:
    """The lookup's key inside the collections: TorchRec cuts keys at an `@`, so it gets a character that no name has."""
    return lookup.key.replace("@", KEY_SEPARATOR)


def _is_unsharded(module: nn.Module) -> bool:
    return isinstance(module, EmbeddingBagCollection | ManagedCollisionEmbeddingBagCollection)


def _bag_collection(module: nn.Module) -> EmbeddingBagCollection:
    found = module._embedding_module if isinstance(module, ManagedCollisionEmbeddingBagCollection) else module
    assert isinstance(found, EmbeddingBagCollection)
    return found


def _bag_config(table: TableEntry, keys: list[str], init: Callable[[Tensor], Tensor]) -> EmbeddingBagConfig:
    mean = table.pooling is Pooling.MEAN and not table.by_weighted_sum
    return EmbeddingBagConfig(
        name=table.name,
        num_embeddings=table.rows,
        embedding_dim=table.dim,
        feature_names=keys,
        pooling=PoolingType.MEAN if mean else PoolingType.SUM,
        data_type=DataType.FP16 if table.dtype == "fp16" else DataType.FP32,
        init_fn=init,
    )


def _zch_module(table: TableEntry, device: torch.device) -> ZchModule:
    assert table.zch is not None
    return ZchModule(name=table.name, rows=table.rows, interval=table.zch.eviction_interval, policy=build_policy(table.zch), device=device)
