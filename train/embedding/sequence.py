"""Tables that someone reads step by step: ids -> a vector for each step, and their pooled reads.

A table lives in one TorchRec `EmbeddingCollection` for each width (TorchRec wants one width in each), ZCH tables in managed ones. Each is a
module of its own, so that `DistributedModelParallel` finds and shards it. Pooled reads of these tables pool the vectors of their ids.

A step is a bag of its own: a step of several ids is pooled as a row is elsewhere, and weights mean the same.

Letters: B rows, N steps, d width of a vector.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torchrec.modules.embedding_configs import EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingCollection
from torchrec.modules.mc_embedding_modules import ManagedCollisionEmbeddingCollection
from torchrec.modules.mc_modules import ManagedCollisionCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from emberline.schema import LookupSpec, Pooling
from emberline.train.data.batch import Asked
from emberline.train.embedding.bag_reads import BagRead, bag_read, read_bags
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
from emberline.train.embedding.jagged import at_least_one_row, split_bags, without_weights
from emberline.train.embedding.registry import TableEntry, TableRegistry
from emberline.train.zch import RowResetCallback


class _Vectors(NamedTuple):
    """The vectors of one key's ids: rows of a table, or the rows of `table` one after the other where `ids` is None.

    Args:
        table: [rows, d].
        ids: int64 [N], or None.
        weights: [N], or None.
        lengths: ids of each row, [B].
    """

    table: Tensor
    ids: Tensor | None
    weights: Tensor | None
    lengths: Tensor

    def bags(self, sizes: Tensor | None, pooling: Pooling) -> BagRead:
        """Bags of `sizes` ids each, [bags]; None: of one id each."""
        return bag_read(self.table, self.ids, sizes, self.weights, pooling)


class SequenceTables(nn.Module):
    """The tables of a model that are read step by step, and all reads of them.

    Args:
        registry: all tables and lookups.
        device: where the tables live; None means torch's default.
    """

    def __init__(self, registry: TableRegistry, device: torch.device | None = None) -> None:
        super().__init__()
        self.tables = {table.name: table for table in registry.tables if table.per_position}
        self.lookups = tuple(lookup for lookup in registry.lookups if lookup.table in self.tables)
        self.sequence_lookups = registry.sequence_lookups
        self._owners = RowOwners(self.tables)
        self.ec_dict = nn.ModuleDict(self._collections(zch=False, device=device))
        self.mc_ec_dict = nn.ModuleDict(self._collections(zch=True, device=device))
        self.initial_moment = 0.0
        self._reader: RowReader | None = None
        self.mark_untrained()

    @property
    def collections(self) -> dict[str, nn.Module]:
        """The collections that there are, by name."""
        return {name: module for name, _, _, module in self._all()}

    def ask(self, kjt: KeyedJaggedTensor) -> dict[str, Asked]:
        """What each collection is asked for, by its name.

        Args:
            kjt: the ids of all features that a table reads; a sequence feature's row has the ids of all its steps.

        Raises:
            DataError: an id is no row of its table; names the feature, the id and the range.
        """
        found = {}
        for name, zch, dim, module in self._all():
            picked = pick_lookups(kjt, self._reads(zch, dim), self.tables, checked=zch)
            ids = without_weights(picked)
            found[name] = Asked(ids if _is_unsharded(module) else at_least_one_row(ids), picked.weights_or_none())  # sharded modules refuse none
        return found

    def forward(self, asked: Mapping[str, Asked], num_rows: int, step_sizes: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Read the tables.

        Args:
            asked: from `ask`.
            num_rows: B of what was asked.
            step_sizes: for sequence features whose steps have any number of ids, the ids of each step [N]; else each has one.

        Returns:
            each pooled lookup's vectors [B, d], and each sequence lookup's steps [N, d], float32, by key.
        """
        vectors: dict[str, _Vectors] = {}
        for name, zch, dim, module in self._all():
            vectors.update(self._read(module, asked[name], num_rows, self._reads(zch, dim)))
        rows = [vectors[lookup.key].bags(vectors[lookup.key].lengths, lookup.pooling) for lookup in self.lookups]
        steps = [vectors[lookup.key].bags(step_sizes.get(lookup.feature), lookup.pooling) for lookup in self.sequence_lookups]
        return _by_key(self.lookups, read_bags(rows)), _by_key(self.sequence_lookups, read_bags(steps))

    def table_weights(self) -> dict[str, nn.Parameter]:
        """The tables' parameters [rows, dim] by name; only before sharding."""
        modules = [*self.ec_dict.values(), *self.mc_ec_dict.values()]
        return {table: weight for module in modules for table, weight in _weights(module).items()}

    def mark_untrained(self) -> None:
        """Take the tables' present values for initial ones: until they change, rows that change owner keep theirs."""
        self._owners.mark_untrained(self.table_weights())

    def read_rows_by(self, reader: RowReader) -> None:
        """See `EmbeddingGroup.read_rows_by`."""
        self._reader = reader
        for module in self.mc_ec_dict.values():
            maps_on_cpu(module, self.tables)

    def on_row_reset(self, callback: RowResetCallback) -> None:
        """Have `callback` called after rows of an unsharded table were started afresh."""
        self._owners.on_reset(callback)

    def _all(self) -> list[tuple[str, bool, int, nn.Module]]:
        """Each collection: its name, whether its tables are ZCH, their width, and itself."""
        kinds = (("ec", False, self.ec_dict), ("mc_ec", True, self.mc_ec_dict))
        return [(f"{kind}_{dim}", zch, int(dim), module) for kind, zch, modules in kinds for dim, module in modules.items()]

    def _reads(self, zch: bool, dim: int) -> list[LookupSpec]:
        """What one collection is asked for: each feature of each table once, whether its ids are pooled, kept apart, or both."""
        lookups = {lookup.key: lookup for lookup in (*self.lookups, *self.sequence_lookups)}
        return [look for look in lookups.values() if look.dim == dim and (self.tables[look.table].zch is not None) == zch]

    def _collections(self, *, zch: bool, device: torch.device | None) -> dict[str, nn.Module]:
        dims = dict.fromkeys(table.dim for table in self.tables.values() if (table.zch is not None) == zch)
        return {str(dim): self._collection(zch, dim, device) for dim in dims}

    def _collection(self, zch: bool, dim: int, device: torch.device | None) -> nn.Module:
        keys: dict[str, list[str]] = {}
        for lookup in self._reads(zch, dim):
            keys.setdefault(lookup.table, []).append(collection_key(lookup))
        configs = [self._config(self.tables[name], names) for name, names in keys.items()]
        collection: Any = EmbeddingCollection(tables=configs, device=device_beside((self.tables[name] for name in keys), device))
        prepare_weights(collection.embeddings, self.tables, self._owners.inits, device)
        if not zch:
            return cast(nn.Module, collection)
        maps = build_maps(self.tables, keys, collection.device)
        mapping = ManagedCollisionCollection(maps, configs, need_preprocess=False)
        return cast(nn.Module, ManagedCollisionEmbeddingCollection(collection, mapping))

    def _config(self, table: TableEntry, keys: list[str]) -> EmbeddingConfig:
        config = EmbeddingConfig(
            name=table.name,
            num_embeddings=table.rows,
            embedding_dim=table.dim,
            feature_names=keys,
            data_type=DATA_TYPES[table.dtype],
            init_fn=self._owners.inits[table.name],
        )
        return cast(EmbeddingConfig, marked(config, table))

    def _read(self, module: nn.Module, asked: Asked, num_rows: int, reads: Sequence[LookupSpec]) -> dict[str, _Vectors]:
        ids = asked.ids
        tables, rows = self._unsharded(module, ids, reads) if _is_unsharded(module) else self._sharded(module, ids, reads)
        weights = [None] * len(reads) if asked.weights is None else asked.weights.split(ids.length_per_key())  # type: ignore[no-untyped-call]
        bags = split_bags(ids)
        found = {}
        for lookup, table, own, weight in zip(reads, tables, rows, weights, strict=True):
            lengths = bags[collection_key(lookup)].lengths[:num_rows]
            found[lookup.key] = _Vectors(table, own, weight if lookup.weighted else None, lengths)
        return found

    def _unsharded(self, module: nn.Module, ids: KeyedJaggedTensor, reads: Sequence[LookupSpec]) -> tuple[list[Tensor], Sequence[Tensor | None]]:
        """Each read's table, and the rows of its ids."""
        if isinstance(module, ManagedCollisionEmbeddingCollection):
            ids = module._managed_collision_collection(ids)
            self._owners.reset(module, _weights(module))
        weights, bags = _weights(module), split_bags(ids)
        pairs = [rows_needed(self.tables[lookup.table], weights[lookup.table], bags[collection_key(lookup)].ids, self._reader) for lookup in reads]
        return [table for table, _ in pairs], [own for _, own in pairs]

    def _sharded(self, module: nn.Module, ids: KeyedJaggedTensor, reads: Sequence[LookupSpec]) -> tuple[list[Tensor], Sequence[Tensor | None]]:
        """Each read's vectors, in the order of its ids."""
        vectors = ask_sharded(module, ids, self._owners, self.initial_moment)
        return [vectors[collection_key(lookup)].values() for lookup in reads], [None] * len(reads)


def _by_key(lookups: Sequence[LookupSpec], vectors: Sequence[Tensor]) -> dict[str, Tensor]:
    return {lookup.key: found for lookup, found in zip(lookups, vectors, strict=True)}


def _is_unsharded(module: nn.Module) -> bool:
    return isinstance(module, EmbeddingCollection | ManagedCollisionEmbeddingCollection)


def _weights(module: nn.Module) -> dict[str, nn.Parameter]:
    found = module._embedding_module if isinstance(module, ManagedCollisionEmbeddingCollection) else module
    assert isinstance(found, EmbeddingCollection)
    return {table: embedding.weight for table, embedding in found.embeddings.items()}
