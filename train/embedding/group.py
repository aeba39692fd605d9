"""The embedding system as a model sees it: a batch in, one tensor a feature group out; of sequences a query, the steps and their number.

    batch ─┬─ lookup ──────────► pooled [B, P] ─────┐
           ├─ sequence_lookup ─► steps [N, d], ... ─┼─ assemble ──► {group: [B, width], group.sequence: [B, L, width], ...}
           └─ dense ───────────► dense [B, D] ──────┘

The lookups hold the tables and are what serving does by itself; `assemble` is plain tensor code, which can be traced and exported.

Letters: B rows, P summed width of all pooled lookups, D summed width of all dense features that are no sequences, N steps of all rows,
L steps of the longest row.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torchrec.distributed.planner.types import ParameterConstraints

from emberline.errors import ConfigError
from emberline.schema import GroupKind, GroupSpec, LookupSpec, TableSpec
from emberline.train.config.functions import InitSpec
from emberline.train.config.group_configs import FeatureGroupConfig
from emberline.train.embedding.constraints import module_constraints
from emberline.train.embedding.columns import QUERY, SEQUENCE, SEQUENCE_LENGTH, GroupColumns
from emberline.train.embedding.group_index import GroupIndex
from emberline.train.embedding.inputs import BatchReader, device_of
from emberline.train.embedding.layout import EmbeddingGroupImpl, SequenceEmbeddingGroupImpl, SequenceParts
from emberline.train.embedding.pooled import PooledTables
from emberline.train.embedding.registry import TableRegistry
from emberline.train.embedding.sequence import SequenceTables
from emberline.train.encoders import Encoder, build_encoder
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

    Raises:
        ConfigError: with every problem found in features and groups.
    """

    def __init__(
        self,
        features: Sequence[Feature],
        feature_groups: Sequence[FeatureGroupConfig],
        wide_embedding_dim: int | None = None,
        wide_init_fn: InitSpec | str | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        device = torch.device(device) if isinstance(device, str) else device
        self.registry = TableRegistry(
            features, feature_groups, wide_embedding_dim=wide_embedding_dim, wide_init=_init_spec(wide_init_fn, "wide_init_fn")
        )
        self.pooled = PooledTables(self.registry, device)
        self.sequence_tables = SequenceTables(self.registry, device)
        names = self.registry.data_groups
        device = None if device is not None and device.type == "meta" else device
        self.emb_impls = nn.ModuleDict({name: _impl(self.registry, name, device) for name in names})
        self.seq_emb_impls = nn.ModuleDict({name: impl for name in names if (impl := _sequence_impl(self.registry, name, device)) is not None})
        self.encoders = nn.ModuleDict(_encoders(self.registry, device))
        self._reader = BatchReader(self.registry)
        self._index = GroupIndex(self.registry, {name: _output_dims(encoders) for name, encoders in self.encoders_by_group().items()})

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
        """Every group's tensor, in config order: of a SEQUENCE or JAGGED_SEQUENCE group its query and its sequence; without nested groups."""
        found = {group.name: [GroupSpec(name=group.name, kind=group.kind, dim=self.group_total_dim(group.name))] for group in self.registry.groups}
        found |= {group.name: list(group.specs) for group in self.registry.sequence_groups if not group.parent}
        return tuple(spec for name in self.registry.group_order for spec in found[name])

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
            float32 tensors in the order of the groups, B being the rows of the group's data group: `G` [B, width] of DEEP and WIDE groups;
            `G.query` [B, Dq], `G.sequence` [B, L, Ds] (JAGGED_SEQUENCE: [N, Ds]) and `G.sequence_length` [B] (integers, as the batch has
            them) of sequence groups, nested ones too, as far as they have such features. A batch without any step has L = 0.

        Raises:
            DataError: a feature is missing, or has ids, lengths or weights that cannot be right; names it.
        """
        rows = self._reader.rows(batch)
        num_rows = max(rows.values(), default=0)
        vectors, sequences = self._lookup(batch, num_rows)
        numbers = self._numbers(self._reader.dense(batch, num_rows))
        result: dict[str, Tensor] = {}
        for data_group, count in rows.items():
            own = (vectors, numbers) if count == num_rows else (_first(vectors, count), _first(numbers, count))
            result.update(self._assemble(data_group, *own, sequences))
        return {key: result[key] for key in self._output_keys() if key in result}

    def lookup(self, batch: "Batch") -> Tensor:
        """The pooled vectors of all pooled lookups, [B, P] float32; data groups with fewer rows than others end with zeros.

        In training mode ZCH tables learn from each call of a lookup, so use `forward` there.
        """
        num_rows = max(self._reader.rows(batch).values(), default=0)
        vectors = self._lookup(batch, num_rows)[0]
        return torch.cat([vectors[lookup.key] for lookup in self.lookups], dim=1) if vectors else torch.zeros(num_rows, 0, device=device_of(batch))

    def sequence_lookup(self, batch: "Batch") -> SequenceParts:
        """The steps of all sequences that some group keeps; rows that only other data groups have are rows without steps. See `lookup`."""
        num_rows = max(self._reader.rows(batch).values(), default=0)
        parts = self._lookup(batch, num_rows)[1]
        lengths = {stream: nn.functional.pad(length, (0, num_rows - length.numel())) for stream, length in parts.lengths.items()}
        return parts._replace(lengths=lengths)

    def dense(self, batch: "Batch") -> Tensor:
        """The numbers of all dense features that are no sequences, [B, D] float32 in config order; zeros for features that no group reads."""
        return self._reader.dense(batch, max(self._reader.rows(batch).values(), default=0))

    def assemble(self, pooled: Tensor, dense: Tensor, sequences: SequenceParts | None = None) -> dict[str, Tensor]:
        """From looked-up vectors and numbers to group tensors; traceable, for any B, N and L.

        Args:
            pooled: [B, P], columns as `lookups` says.
            dense: [B, D], columns as the dense features in config order, without sequences.
            sequences: the steps; needed where `has_sequences`.

        Returns:
            what `forward` returns.
        """
        vectors = _columns(pooled, [(lookup.key, lookup.dim) for lookup in self.lookups])
        numbers = self._numbers(dense)
        parts = SequenceParts({}, {}, {}) if sequences is None else sequences
        result: dict[str, Tensor] = {}
        for data_group in self.emb_impls:
            result.update(self._assemble(data_group, vectors, numbers, parts))
        return {key: result[key] for key in self._output_keys() if key in result}

    def encoders_by_group(self) -> dict[str, list[nn.Module]]:
        """The encoders of each DEEP group that has some, in order."""
        return {key.removeprefix(_ENCODERS_OF): list(encoders.children()) for key, encoders in self.encoders.items()}

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

    def _lookup(self, batch: "Batch", num_rows: int) -> tuple[dict[str, Tensor], SequenceParts]:
        """Pooled vectors [B, d] by key, and the steps, each data group with its own number of rows. Reads each table once."""
        kjt = self._reader.ids(batch, num_rows)
        steps = self._reader.steps(batch)
        values, pooled = dict(steps.numbers), {}
        if kjt is not None:
            more, vectors = self.sequence_tables(kjt, steps.sizes)
            pooled = self.pooled(kjt) | more
            values.update(vectors)
        padded = {group.stream for group in self.registry.sequence_groups if not group.is_jagged}
        lengths = {group.stream: steps.lengths[group.stream] for group in self.registry.sequence_groups if group.stream is not None}
        positions = {stream: _positions(length) for stream, length in lengths.items() if stream in padded}
        return pooled, SequenceParts(values, lengths, positions)

    def _numbers(self, dense: Tensor) -> dict[str, Tensor]:
        """[B, D] cut into the dense features, by name."""
        return _columns(dense, [(feature.name, feature.value_dim) for feature in self._reader.dense_features])

    def _assemble(self, data_group: str, vectors: dict[str, Tensor], numbers: dict[str, Tensor], parts: SequenceParts) -> dict[str, Tensor]:
        """The tensors of one data group's groups."""
        impl = self.emb_impls[data_group]
        assert isinstance(impl, EmbeddingGroupImpl)
        embedded = impl.embed(numbers)
        result: dict[str, Tensor] = impl(vectors, embedded)
        if data_group in self.seq_emb_impls:
            result.update(self.seq_emb_impls[data_group](vectors, embedded, parts))
        for group in impl.groups:
            if group.encoders:
                result[group.name] = self._encoded(group, result)
        return result

    def _encoded(self, group: GroupColumns, result: Mapping[str, Tensor]) -> Tensor:
        """A DEEP group's tensor [B, width] with the outputs of its encoders."""
        parts = [result[group.name]] if group.features else []
        for config, encoder in zip(group.encoders, self.encoders[_ENCODERS_OF + group.name].children(), strict=True):
            query, sequence, lengths = (result.get(f"{config.input}.{part}") for part in (QUERY, SEQUENCE, SEQUENCE_LENGTH))
            parts.append(encoder(query, sequence, lengths))
        return torch.cat(parts, dim=1)


_ENCODERS_OF = "of_"
"""Keeps the names of groups apart from those of nn.ModuleDict itself."""


def _impl(registry: TableRegistry, data_group: str, device: torch.device | None) -> EmbeddingGroupImpl:
    groups = [group for group in registry.groups if group.data_group == data_group]
    queries = [name for group in registry.sequence_groups if group.data_group == data_group for name in group.query.dense_features]
    return EmbeddingGroupImpl(groups, registry.features, device, queries)


def _sequence_impl(registry: TableRegistry, data_group: str, device: torch.device | None) -> SequenceEmbeddingGroupImpl | None:
    groups = [group for group in registry.sequence_groups if group.data_group == data_group]
    return SequenceEmbeddingGroupImpl(groups, registry.features, device) if groups else None


def _encoders(registry: TableRegistry, device: torch.device | None) -> dict[str, nn.ModuleList]:
    """The encoders of each DEEP group that has some.

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
                found.setdefault(_ENCODERS_OF + group.name, nn.ModuleList()).append(encoder.to(device))
    if problems:
        raise ConfigError(problems)
    return found


def _output_dims(encoders: Sequence[nn.Module]) -> list[int]:
    return [cast(Encoder, encoder).output_dim for encoder in encoders]


def _init_spec(init: InitSpec | str | None, where: str) -> InitSpec | None:
    if not isinstance(init, str):
        return init
    try:
        return InitSpec.parse(init)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from error


def _positions(lengths: Tensor) -> Tensor:
    """0, 1, ... of the longest row."""
    return torch.arange(int(lengths.max()) if lengths.numel() else 0, device=lengths.device)


def _columns(matrix: Tensor, parts: Sequence[tuple[str, int]]) -> dict[str, Tensor]:
    """A matrix [B, sum of widths] cut into named parts."""
    if not parts:
        return {}
    columns = torch.split(matrix, [width for _, width in parts], dim=1)
    return {name: columns[place] for place, (name, _) in enumerate(parts)}  # by place: a symbolic trace cannot iterate


def _first(parts: Mapping[str, Tensor], count: int) -> dict[str, Tensor]:
    return {name: part[:count] for name, part in parts.items()}
