"""Tables that are only read pooled: bags of ids -> a vector each.

Tables live in at most four TorchRec collections: pooled plainly or by weighted sums, ids as rows or zero-collision hashing. Each is a module of
its own, so that `DistributedModelParallel` finds and shards it; unsharded, the bags are pooled here.

A frozen table's weight needs no gradient. Fused kernels update whatever they hold, so give such tables a rate of 0 before sharding.

Letters: B rows, d width of a lookup.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torchrec.modules.embedding_configs import EmbeddingBagConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.modules.mc_embedding_modules import ManagedCollisionEmbeddingBagCollection
from torchrec.modules.mc_modules import ManagedCollisionCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from emberline.schema import LookupSpec, Pooling
from emberline.train.data.batch import Asked
from emberline.train.embedding.bag_reads import BagRead, read_bags
from emberline.train.embedding.collections import (
    DATA_TYPES,
    RowOwners,
    RowReader,
    ask_sharded,
    build_maps,
    collection_key,
    device_beside,
    maps_on_cpu,
    marked,
    pick_lookups,
    prepare_weights,
    rows_needed,
)
from emberline.train.embedding.jagged import at_least_one_row, split_bags, with_sum_weights, without_weights
from emberline.train.embedding.registry import TableEntry, TableRegistry
from emberline.train.zch import RowResetCallback

_COLLECTIONS = ("ebc", "weighted_ebc", "mc_ebc", "weighted_mc_ebc")


class PooledTables(nn.Module):
    """The tables of a model that nobody reads step by step, and the pooled reads of them.

    Args:
        registry: all tables and lookups.
        device: where the tables live; None means torch's default.
    """

    def __init__(self, registry: TableRegistry, device: torch.device | None = None) -> None:
        super().__init__()
        self.tables = {table.name: table for table in registry.tables if not table.per_position}
        self.lookups = tuple(lookup for lookup in registry.lookups if lookup.table in self.tables)
        self._owners = RowOwners(self.tables)
        self.ebc = self._collection(zch=False, weighted=False, device=device)
        self.weighted_ebc = self._collection(zch=False, weighted=True, device=device)
        self.mc_ebc = self._collection(zch=True, weighted=False, device=device)
        self.weighted_mc_ebc = self._collection(zch=True, weighted=True, device=device)
        self.initial_moment = 0.0
        self._reader: RowReader | None = None
        self.mark_untrained()

    @property
    def collections(self) -> dict[str, nn.Module]:
        """The collections that there are, by name."""
        return {name: module for name in _COLLECTIONS if (module := getattr(self, name)) is not None}

    def ask(self, kjt: KeyedJaggedTensor) -> dict[str, Asked]:
        """What each collection is asked for, by its name.

        Args:
            kjt: bags of all features that a table reads.

        Raises:
            DataError: an id is no row of its table; names the feature, the id and the range.
        """
        found = {}
        for name, module in self.collections.items():
            zch, weighted = _kind(name)
            bags = self._bags(kjt, self._lookups_of(zch, weighted), weighted, checked=zch)
            found[name] = Asked(bags if _is_unsharded(module) else at_least_one_row(bags))  # the row-wise kernels' divisors refuse none
        return found

    def forward(self, asked: Mapping[str, Asked], num_rows: int) -> dict[str, Tensor]:
        """Each lookup's pooled vectors [B, d] float32 by key, in the order of `lookups`.

        Args:
            asked: from `ask`.
            num_rows: B of what was asked.
        """
        vectors: dict[str, Tensor] = {}
        for name, module in self.collections.items():
            lookups, bags = self._lookups_of(*_kind(name)), asked[name].ids
            found = self._pool_unsharded(module, bags, lookups) if _is_unsharded(module) else self._pool_sharded(module, bags, lookups, num_rows)
            vectors.update(zip([lookup.key for lookup in lookups], found, strict=True))
        return vectors

    def table_weights(self) -> dict[str, nn.Parameter]:
        """The tables' parameters [rows, dim] by name; only before sharding."""
        return {table: weight for module in self._modules.values() if module is not None for table, weight in _weights(module).items()}

    def mark_untrained(self) -> None:
        """Take the tables' present values for initial ones: until they change, rows that change owner keep theirs."""
        self._owners.mark_untrained(self.table_weights())

    def read_rows_by(self, reader: RowReader) -> None:
        """See `EmbeddingGroup.read_rows_by`."""
        self._reader = reader
        for module in self.collections.values():
            if isinstance(module, ManagedCollisionEmbeddingBagCollection):
                maps_on_cpu(module, self.tables)

    def on_row_reset(self, callback: RowResetCallback) -> None:
        """Have `callback` called after rows of an unsharded table were started afresh."""
        self._owners.on_reset(callback)

    def _lookups_of(self, zch: bool, weighted: bool) -> list[LookupSpec]:
        def belongs(table: TableEntry) -> bool:
            return (table.zch is not None) == zch and table.by_weighted_sum == weighted

        return [lookup for lookup in self.lookups if belongs(self.tables[lookup.table])]

    def _collection(self, *, zch: bool, weighted: bool, device: torch.device | None) -> Any:
        lookups = self._lookups_of(zch, weighted)
        if not lookups:
            return None
        names = dict.fromkeys(lookup.table for lookup in lookups)
        keys = {name: [collection_key(lookup) for lookup in lookups if lookup.table == name] for name in names}
        configs = [_bag_config(self.tables[name], keys[name], self._owners.inits[name]) for name in names]
        built_on = device_beside((self.tables[name] for name in names), device)
        collection = EmbeddingBagCollection(tables=configs, is_weighted=weighted, device=built_on)
        prepare_weights(collection.embedding_bags, self.tables, self._owners.inits, device)
        if not zch:
            return collection
        maps = build_maps(self.tables, names, collection.device)
        mapping = ManagedCollisionCollection(maps, configs, need_preprocess=False)
        return ManagedCollisionEmbeddingBagCollection(collection, mapping)

    def _bags(self, kjt: KeyedJaggedTensor, lookups: Sequence[LookupSpec], weighted: bool, *, checked: bool) -> KeyedJaggedTensor:
        bags = pick_lookups(kjt, lookups, self.tables, checked=checked)
        if weighted:
            return with_sum_weights(bags, [lookup.pooling is Pooling.MEAN for lookup in lookups])
        return without_weights(bags)

    def _pool_unsharded(self, module: nn.Module, bags: KeyedJaggedTensor, lookups: Sequence[LookupSpec]) -> list[Tensor]:
        if isinstance(module, ManagedCollisionEmbeddingBagCollection):
            bags = module._managed_collision_collection(bags)
            self._owners.reset(module, _weights(module))
        tables, bags_by_key = _weights(module), split_bags(bags)
        reads = []
        for lookup in lookups:
            ids, lengths, weights = bags_by_key[collection_key(lookup)]
            table, ids = rows_needed(self.tables[lookup.table], tables[lookup.table], ids, self._reader)
            reads.append(BagRead(table, ids, lengths, weights, lookup.pooling is Pooling.MEAN and weights is None))
        return read_bags(reads)

    def _pool_sharded(self, module: nn.Module, bags: KeyedJaggedTensor, lookups: Sequence[LookupSpec], num_rows: int) -> list[Tensor]:
        pooled = ask_sharded(module, bags, self._owners, self.initial_moment)
        columns = dict(zip(pooled.keys(), torch.split(pooled.values(), pooled.length_per_key(), dim=1), strict=True))
        found = [columns[collection_key(lookup)] for lookup in lookups]
        return found if num_rows else [column[:0] for column in found]


def _kind(name: str) -> tuple[bool, bool]:
    """Of a collection's tables: whether they are ZCH, and whether they are pooled by weighted sums."""
    return "mc" in name, "weighted" in name


def _is_unsharded(module: nn.Module) -> bool:
    return isinstance(module, EmbeddingBagCollection | ManagedCollisionEmbeddingBagCollection)


def _weights(module: nn.Module) -> dict[str, nn.Parameter]:
    found = module._embedding_module if isinstance(module, ManagedCollisionEmbeddingBagCollection) else module
    assert isinstance(found, EmbeddingBagCollection)
    return {table: bag.weight for table, bag in found.embedding_bags.items()}


def _bag_config(table: TableEntry, keys: list[str], init: Callable[[Tensor], Tensor]) -> EmbeddingBagConfig:
    mean = Pooling.MEAN in table.poolings and not table.by_weighted_sum
    config = EmbeddingBagConfig(
        name=table.name,
        num_embeddings=table.rows,
        embedding_dim=table.dim,
        feature_names=keys,
        pooling=PoolingType.MEAN if mean else PoolingType.SUM,
        data_type=DATA_TYPES[table.dtype],
        init_fn=init,
    )
    return cast(EmbeddingBagConfig, marked(config, table))
