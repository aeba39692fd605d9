"""The embedding system as a model sees it: a batch in, one tensor a feature group out; of sequences a query, the steps and their number.

    batch ─┬─ lookup ──────────► pooled [B, P] ─────┐
           ├─ sequence_lookup ─► steps [N, d], ... ─┼─ assemble ──► {group: [B, width], group.sequence: [B, L, width], ...}
           └─ dense ───────────► dense [B, D] ──────┘

The lookups hold the tables and are what serving does by itself; `assemble` is plain tensor code, which can be traced and exported.
A tiled batch, with users once and their rows beside them, goes the same way by `tiled_lookup` and `assemble_tiled`.

Letters: B rows, U users of a tiled batch, P summed width of all pooled lookups, D summed width of all dense features that are no sequences,
N steps of all rows, L steps of the longest row.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torchrec.distributed.planner.types import ParameterConstraints

from emberline.errors import DataError
from emberline.schema import GroupKind, GroupSpec, LookupSpec, StreamSpec, TableSpec
from emberline.train.config.functions import InitSpec
from emberline.train.config.group_configs import FeatureGroupConfig
from emberline.train.embedding.assembly import Modules, assemble_groups
from emberline.train.embedding.collections import RowReader
from emberline.train.embedding.columns import SEQUENCE_LENGTH, sequence_specs
from emberline.train.embedding.constraints import module_constraints
from emberline.train.embedding.construct import (
    ENCODERS_OF,
    build_encoders,
    build_impl,
    build_sequence_impl,
    dtype_name,
    output_dims,
    read_init,
)
from emberline.train.embedding.group_index import GroupIndex
from emberline.train.embedding.inputs import BatchReader, device_of
from emberline.train.embedding.layout import EmbeddingGroupImpl, SequenceEmbeddingGroupImpl, SequenceParts
from emberline.train.embedding.lookups import Looked, Source, Tables, check_source, columns, look_up
from emberline.train.embedding.pooled import PooledTables
from emberline.train.embedding.registry import TableRegistry
from emberline.train.embedding.sequence import SequenceTables
from emberline.train.embedding.sides import Sides
from emberline.train.embedding.spread import UNTILED, Spread
from emberline.train.embedding.tile import TiledParts, TileReader
from emberline.train.features import Feature
from emberline.train.zch import RowResetCallback

if TYPE_CHECKING:
    from emberline.train.data import Batch


class EmbeddingGroup(nn.Module):
    """Embeds a batch's features and lays them out by group.

    Args:
        features: all features, in config order.
        feature_groups: the groups, in config order.
        wide_embedding_dim: width of every table of WIDE groups; None means 4.
        wide_init_fn: how those tables begin, as text (`nn.init.zeros_`) or spec; None: as the features say.
        device: where the parameters live; None means torch's default. `meta` leaves the tables without memory, for sharding, and has the
            rest on torch's default device.
        output_dtype: of the tensors of groups: float32, float16 or bfloat16. Rows are summed, numbers embedded and sequences encoded in
            float32 whatever it is, and each result is rounded once.

    Raises:
        ConfigError: with every problem found in features and groups; an `output_dtype` that is none of these.
    """

    def __init__(
        self,
        features: Sequence[Feature],
        feature_groups: Sequence[FeatureGroupConfig],
        wide_embedding_dim: int | None = None,
        wide_init_fn: InitSpec | str | None = None,
        device: torch.device | str | None = None,
        output_dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        dtype_name(output_dtype)  # refuses what is none
        self.output_dtype = output_dtype
        device = torch.device(device) if isinstance(device, str) else device
        self.registry = TableRegistry(
            features, feature_groups, wide_embedding_dim=wide_embedding_dim, wide_init=read_init(wide_init_fn, "wide_init_fn")
        )
        self.pooled = PooledTables(self.registry, device)
        self.sequence_tables = SequenceTables(self.registry, device)
        names = self.registry.data_groups
        device = None if device is not None and device.type == "meta" else device
        self.emb_impls = nn.ModuleDict({name: build_impl(self.registry, name, device) for name in names})
        self.seq_emb_impls = nn.ModuleDict({name: impl for name in names if (impl := build_sequence_impl(self.registry, name, device)) is not None})
        self.encoders = nn.ModuleDict(build_encoders(self.registry, device))
        self._reader = BatchReader(self.registry)
        self._tile_reader = TileReader(self.registry)
        self._check_mark = object()  # another in each copy, whose tables may become different ones
        self._index = GroupIndex(self.registry, {name: output_dims(encoders) for name, encoders in self.encoders_by_group().items()})

    @property
    def _tables(self) -> Tables:
        return Tables(self.pooled, self.sequence_tables)

    @property
    def collections(self) -> dict[str, nn.Module]:
        """The modules that hold the tables, by the names by which a batch that was checked says what each is asked for."""
        return self.sequence_tables.collections | self.pooled.collections

    @property
    def features(self) -> tuple[Feature, ...]:
        """All features, in config order."""
        return tuple(self.registry.features.values())

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        """Every table."""
        return tuple(table.spec for table in self.registry.tables)

    @property
    def lookups(self) -> tuple[LookupSpec, ...]:
        """Every pooled read, in the order of the columns of `lookup`."""
        return self.registry.lookups

    @property
    def sequence_lookups(self) -> tuple[LookupSpec, ...]:
        """Every read that keeps the steps of a sequence; its pooling is that of the ids of one step."""
        return self.registry.sequence_lookups

    @property
    def groups(self) -> tuple[GroupSpec, ...]:
        """Every group's tensors, in config order: of a SEQUENCE or JAGGED_SEQUENCE group its query, steps and their number; without nested groups."""
        found = {group.name: [GroupSpec(name=group.name, kind=group.kind, dim=self.group_total_dim(group.name))] for group in self.registry.groups}
        found |= {group.name: sequence_specs(group, self.streams) for group in self.registry.sequence_groups if not group.parent}
        return tuple(spec for name in self.registry.group_order for spec in found[name])

    @property
    def streams(self) -> tuple[StreamSpec, ...]:
        """The sequences that some group keeps the steps of, nested groups included."""
        return self.registry.streams

    @property
    def has_sequences(self) -> bool:
        """Whether there is a group of sequences, nested ones included: `assemble` then needs the steps too."""
        return bool(self.registry.sequence_groups)

    @property
    def dense_dim(self) -> int:
        """D: numbers a row of all dense features that are no sequences."""
        return sum(feature.value_dim for feature in self._reader.dense_features)

    def forward(self, batch: "Batch") -> dict[str, Tensor]:
        """Embed a batch.

        Args:
            batch: the features by data group. Data groups may have different numbers of rows.

        Returns:
            tensors of `output_dtype` in the order of the groups, B being the rows of the group's data group: `G` [B, width] of DEEP and WIDE groups;
            `G.query` [B, Dq], `G.sequence` [B, L, Ds] (JAGGED_SEQUENCE: [N, Ds]) and `G.sequence_length` [B] (integers, as the batch has
            them) of sequence groups, nested ones too, as far as they have such features. A batch without any step has L = 0.

        Raises:
            DataError: a feature is missing, or has ids, lengths or weights that cannot be right; names it.
        """
        looked = self._look_up(batch)
        vectors, numbers = looked.own_rows(self.lookups)
        return self._assemble(vectors, numbers, looked.sequences, looked.spread)

    def check(self, batch: "Batch") -> "Batch":
        """Look at all values of a batch that `forward` would look at, once, best before it goes to a device, where each look is waited for.

        Returns:
            the same batch, marked: `forward` of this group then looks at no value of it, save for ZCH tables; sharded tables exchange
            sizes all the same. The mark goes along to other devices (`Batch.to`) and is lost by any other change; nothing may be changed
            in place. A tiled batch, whose users without rows must be found in `forward`, comes back as it is and is checked there.

        Raises:
            DataError: as `forward`, save of tiled batches.
        """
        if batch.tile is not None:
            return batch
        source = Source(self._reader, batch, self._reader.rows(batch))
        return batch.marked(check_source(source, self._tables, self.registry.sequence_groups, self._check_mark))

    def on_device(self, batch: "Batch", device: torch.device) -> "Batch":
        """A batch where the tables are; where that is no CPU, it is checked before it goes there.

        Raises:
            DataError: as `check`.
        """
        return batch.to(device) if device.type == "cpu" else self.check(batch).to(device)

    def lookup(self, batch: "Batch") -> Tensor:
        """The pooled vectors of all pooled lookups, [B, P] float32; data groups with fewer rows than others end with zeros.

        In training mode ZCH tables learn from each call of a lookup, so use `forward` there.
        """
        source = self._untiled(batch)
        vectors = self._look_up_sources([source], UNTILED).vectors
        if not vectors:
            return torch.zeros(source.num_rows, 0, device=device_of(batch))
        return torch.cat([vectors[lookup.key] for lookup in self.lookups], dim=1)

    def sequence_lookup(self, batch: "Batch") -> SequenceParts:
        """The steps of all sequences that some group keeps; rows that only other data groups have are rows without steps. See `lookup`."""
        source = self._untiled(batch)
        parts = self._look_up_sources([source], UNTILED).sequences
        lengths = {stream: nn.functional.pad(length, (0, source.num_rows - length.numel())) for stream, length in parts.lengths.items()}
        return parts._replace(lengths=lengths)

    def dense(self, batch: "Batch") -> Tensor:
        """The numbers of all dense features that are no sequences, [B, D] float32 in config order; zeros for features that no group reads."""
        return self._reader.dense(batch, self._untiled(batch).num_rows)

    def assemble(self, pooled: Tensor, dense: Tensor, sequences: SequenceParts | None = None) -> dict[str, Tensor]:
        """From looked-up vectors and numbers to group tensors; traceable, for any B, N and L.

        Args:
            pooled: [B, P], columns as `lookups` says.
            dense: [B, D], columns as the dense features in config order, without sequences.
            sequences: the steps; needed where `has_sequences`.

        Returns:
            what `forward` returns.
        """
        vectors = columns(pooled, [(lookup.key, lookup.dim) for lookup in self.lookups])
        numbers = columns(dense, [(feature.name, feature.value_dim) for feature in self._reader.dense_features])
        parts = SequenceParts({}, {}, {}) if sequences is None else sequences
        return self._assemble(vectors, numbers, parts, UNTILED)

    @property
    def sides(self) -> Sides:
        """What a tiled batch has once for each user, and what for each row."""
        return self._tile_reader.sides

    def tiled_lookup(self, batch: "Batch") -> TiledParts:
        """What `lookup`, `sequence_lookup` and `dense` find, of a tiled batch, each side with its own rows. Users without rows are left out.

        Raises:
            ConfigError: features have no side, or groups read other data groups than `__BASE__`.
            DataError: as `forward`, or the batch is not tiled.
        """
        if batch.tile is None:
            raise DataError("the batch is not tiled; use lookup, sequence_lookup and dense")
        read = self._tile_reader.read(batch, training=self.training)
        return self._tile_reader.parts(read, self._look_up_sources([read.user, read.item], read.spread))

    def assemble_tiled(self, parts: TiledParts) -> dict[str, Tensor]:
        """As `assemble` for a tiled batch; traceable, for any U, B, N and L, or, with `rows` None, for the one user of all rows.

        Args:
            parts: what was looked up.

        Returns:
            what `forward` returns.
        """
        looked = self._tile_reader.joined(parts)
        return self._assemble(looked.vectors, looked.numbers, looked.sequences, looked.spread)

    def encoders_by_group(self) -> dict[str, list[nn.Module]]:
        """The encoders of each DEEP group that has some, in order."""
        return {key.removeprefix(ENCODERS_OF): list(encoders.children()) for key, encoders in self.encoders.items()}

    def table_weights(self) -> dict[str, nn.Parameter]:
        """The tables' parameters [rows, dim] by name; only before sharding."""
        return self.pooled.table_weights() | self.sequence_tables.table_weights()

    def parameter_constraints(self, prefix: str = "") -> dict[str, ParameterConstraints]:
        """What a planner may choose for each table, by the table's full path; `prefix` is that of this module."""
        return module_constraints(self.registry, self, prefix)

    def mark_untrained(self) -> None:
        """Take the tables' present values for initial ones: until they change, rows of ZCH tables that change owner keep theirs."""
        self.pooled.mark_untrained()
        self.sequence_tables.mark_untrained()

    def set_initial_moment(self, value: float) -> None:
        """Say what the sparse optimiser's moments of a row begin with, for rows of sharded ZCH tables that change owner."""
        self.pooled.initial_moment = self.sequence_tables.initial_moment = value

    def read_rows_by(self, reader: RowReader) -> None:
        """Have a group that was built on `meta` read rows of its tables by `reader`, in eval mode, unsharded; its id maps begin empty on the CPU.

        Only rows that a batch needs are asked for, so that tables may be where there is more room than in memory.
        """
        self.pooled.read_rows_by(reader)
        self.sequence_tables.read_rows_by(reader)

    def on_row_reset(self, callback: RowResetCallback) -> None:
        """Have `callback` called when rows of an unsharded ZCH table change owner, after they got new vectors."""
        self.pooled.on_row_reset(callback)
        self.sequence_tables.on_row_reset(callback)

    def group_names(self) -> list[str]:
        """The groups' names, in config order; sequence groups nested in others are no groups of their own."""
        return list(self._index.names)

    def grouped_features_keys(self) -> list[str]:
        """The keys of the groups' tensors, sorted: three for each sequence group, though `forward` leaves out a part without features."""
        return self._index.keys

    def has_group(self, name: str) -> bool:
        """Whether there is a group called like the part of `name` before the first dot; nested sequence groups do not count."""
        return name.split(".")[0] in self._index.names

    def group_type(self, name: str) -> GroupKind:
        """The kind of a group, by its name or that of one of its parts (`G.sequence`); SEQUENCE for nested groups."""
        return self._index.kind(name)

    def group_dims(self, name: str) -> list[int]:
        """The width of each feature's part of a group in order, then of each encoder's output; of `G.query` and `G.sequence` that part."""
        return list(self._index.widths(name).values())

    def group_total_dim(self, name: str) -> int:
        """The width of a group's tensor: the sum of `group_dims`. For the bare name of a sequence group: query and sequence together."""
        return sum(self._index.widths(name).values())

    def group_feature_dims(self, name: str) -> dict[str, int]:
        """As `group_dims`, by feature; encoders' outputs are `G_seq_encoder_0` and so on."""
        return self._index.widths(name)

    def _output_keys(self) -> Iterator[str]:
        """All keys that `forward` may return, groups in config order, nested ones after the group that holds them."""
        for name in self.registry.group_order:
            if any(group.name == name for group in self.registry.groups):
                yield name
            for group in self.registry.sequence_groups:
                if name == (group.parent or group.name):
                    yield from group.output_keys

    def _untiled(self, batch: "Batch") -> Source:
        """A batch that must not be tiled, its rows found right."""
        if batch.tile is not None:
            raise DataError("the batch is tiled; use forward, or tiled_lookup")
        return self._source(batch)

    def _look_up(self, batch: "Batch") -> Looked:
        if batch.tile is None:
            return self._look_up_sources([self._source(batch)], UNTILED)
        read = self._tile_reader.read(batch, training=self.training)
        return self._look_up_sources([read.user, read.item], read.spread)

    def _source(self, batch: "Batch") -> Source:
        """An untiled batch, its rows found right."""
        trusted = batch.checked if batch.checked is not None and batch.checked.by is self._check_mark else None
        rows = self._reader.rows(batch, checked=trusted is not None)
        return Source(self._reader, batch, rows, trusted)

    def _look_up_sources(self, sources: Sequence[Source], spread: Spread) -> Looked:
        return look_up(sources, self._tables, self.registry.sequence_groups, spread)

    def _assemble(self, vectors: Mapping[str, Tensor], numbers: Mapping[str, Tensor], parts: SequenceParts, spread: Spread) -> dict[str, Tensor]:
        """The tensors of all groups."""
        encoders, sequence_impls = self.encoders_by_group(), dict(self.seq_emb_impls.items())
        result: dict[str, Tensor] = {}
        for data_group, impl in self.emb_impls.items():
            sequence_impl = cast(SequenceEmbeddingGroupImpl | None, sequence_impls.get(data_group))
            modules = Modules(cast(EmbeddingGroupImpl, impl), sequence_impl, encoders)
            result.update(assemble_groups(modules, vectors, numbers, parts, spread))
        return {key: self._rounded(key, result[key]) for key in self._output_keys() if key in result}

    def _rounded(self, key: str, tensor: Tensor) -> Tensor:
        """In the declared type, save lengths, which stay integers; also what autocast made of float32."""
        return tensor if key.endswith(f".{SEQUENCE_LENGTH}") else tensor.to(self.output_dtype)
