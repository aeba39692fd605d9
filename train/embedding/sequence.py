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
from emberline.train.embedding.bag_reads import BagRead, bag_read, read_bags
from emberline.train.embedding.collections import DATA_TYPES, RowOwners, ask_sharded, collection_key, pick_lookups, prepare_weights, zch_module
from emberline.train.embedding.jagged import one_empty_row, split_bags, without_weights
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
        self.mark_untrained()

    def forward(
        self, kjt: KeyedJaggedTensor, step_sizes: Mapping[str, Tensor], *, checked: bool = False
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Read the tables.

        Args:
            kjt: the ids of all features that a table reads; a sequence feature's row has the ids of all its steps.
            step_sizes: for sequence features whose steps have any number of ids, the ids of each step [N]; else each has one.
            checked: the ids went through `check`.

        Returns:
            each pooled lookup's vectors [B, d], and each sequence lookup's steps [N, d], float32, by key.
        """
        vectors: dict[str, _Vectors] = {}
        for zch, collections in ((False, self.ec_dict), (True, self.mc_ec_dict)):
            for dim, module in collections.items():
                vectors.update(self._read(module, kjt, self._reads(zch, int(dim)), checked=checked or zch))
        rows = [vectors[lookup.key].bags(vectors[lookup.key].lengths, lookup.pooling) for lookup in self.lookups]
        steps = [vectors[lookup.key].bags(step_sizes.get(lookup.feature), lookup.pooling) for lookup in self.sequence_lookups]
        return _by_key(self.lookups, read_bags(rows)), _by_key(self.sequence_lookups, read_bags(steps))

    def check(self, kjt: KeyedJaggedTensor) -> None:
        """Refuse ids that are no rows of their tables.

        Raises:
            DataError: names the feature, the id and the range.
        """
        for dim in self.ec_dict:
            pick_lookups(kjt, self._reads(False, int(dim)), self.tables, checked=False)

    def table_weights(self) -> dict[str, nn.Parameter]:
        """The tables' parameters [rows, dim] by name; only before sharding."""
        modules = [*self.ec_dict.values(), *self.mc_ec_dict.values()]
        return {table: weight for module in modules for table, weight in _weights(module).items()}

    def mark_untrained(self) -> None:
        """Take the tables' present values for initial ones: until they change, rows that change owner keep theirs."""
        self._owners.mark_untrained(self.table_weights())

    def on_row_reset(self, callback: RowResetCallback) -> None:
        """Have `callback` called after rows of an unsharded table were started afresh."""
        self._owners.on_reset(callback)

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
        collection: Any = EmbeddingCollection(tables=configs, device=device)
        prepare_weights(collection.embeddings, self.tables, self._owners.inits)
        if not zch:
            return cast(nn.Module, collection)
        maps = {name: zch_module(self.tables[name], collection.device) for name in keys}
        mapping = ManagedCollisionCollection(maps, configs, need_preprocess=False)
        return cast(nn.Module, ManagedCollisionEmbeddingCollection(collection, mapping))

    def _config(self, table: TableEntry, keys: list[str]) -> EmbeddingConfig:
        return EmbeddingConfig(
            name=table.name,
            num_embeddings=table.rows,
            embedding_dim=table.dim,
            feature_names=keys,
            data_type=DATA_TYPES[table.dtype],
            init_fn=self._owners.inits[table.name],
        )

    def _read(self, module: nn.Module, kjt: KeyedJaggedTensor, reads: Sequence[LookupSpec], *, checked: bool) -> dict[str, _Vectors]:
        picked = pick_lookups(kjt, reads, self.tables, checked=checked)
        ids = without_weights(picked)
        tables, rows = self._unsharded(module, ids, reads) if _is_unsharded(module) else self._sharded(module, ids, reads)
        bags = split_bags(picked)
        found = {}
        for place, (lookup, own) in enumerate(zip(reads, rows, strict=True)):
            bag = bags[collection_key(lookup)]
            found[lookup.key] = _Vectors(tables[place], own, bag.weights if lookup.weighted else None, bag.lengths)
        return found

    def _unsharded(self, module: nn.Module, ids: KeyedJaggedTensor, reads: Sequence[LookupSpec]) -> tuple[list[Tensor], Sequence[Tensor | None]]:
        """Each read's table, and the rows of its ids."""
        if isinstance(module, ManagedCollisionEmbeddingCollection):
            ids = module._managed_collision_collection(ids)
            self._owners.reset(module, _weights(module))
        weights, bags = _weights(module), split_bags(ids)
        return [weights[lookup.table] for lookup in reads], [bags[collection_key(lookup)].ids for lookup in reads]

    def _sharded(self, module: nn.Module, ids: KeyedJaggedTensor, reads: Sequence[LookupSpec]) -> tuple[list[Tensor], Sequence[Tensor | None]]:
        """Each read's vectors, in the order of its ids."""
        if ids.stride() == 0:  # the sharded modules refuse it
            ids = one_empty_row(ids)
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
