"""Which tables a model has, who reads them, and how groups are put together: plain data, made before any module.

One name is one physical table, in all groups and data groups. Whatever does not fit is refused here, all at once, by name.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from torchrec.distributed.planner.types import ParameterConstraints

from emberline.errors import ConfigError
from emberline.schema import GroupKind, LookupSpec, Pooling, TableKind, TableSpec
from emberline.train.config.functions import InitSpec
from emberline.train.config.group_configs import FeatureGroupConfig
from emberline.train.config.groups import group_problems
from emberline.train.config.table_reads import DEFAULT_WIDE_DIM, GroupView, TableRead, WideTables, table_name, table_reads, views
from emberline.train.embedding.columns import Columns, GroupColumns, SequenceColumns, find_streams
from emberline.train.embedding.feature_rules import feature_problems
from emberline.train.features import Feature, ZchConfig


@dataclass(frozen=True, kw_only=True)
class TableEntry:
    """One physical table and all that a config says about it.

    Args:
        name: unique.
        rows: vectors; for ZCH the fallback row is one of them, and with `raw_ids` it is the most that there may be.
        dim: width of a vector.
        dtype: fp32, fp16 or bf16.
        poolings: those of its readers, each once.
        init: how it begins; None means uniform in +-sqrt(1 / rows).
        trainable: False freezes it.
        zch: settings of its id map, or None where ids are rows.
        raw_ids: whether ids are any int64, each of which finds a vector by itself: the table is no block of memory here, but a placeholder of what
            sharding puts in its place.
        marks: attributes that its TorchRec config gets, as its features say.
        constraints: what a planner may choose, as its features say.
        is_wide: whether it is a table of WIDE groups.
        beside: whether it is, and a feature of it reads a table of its own width too, which the feature's constraints are meant for.
        features: names of its readers, in the order of the groups.
        weighted: whether any reader's ids have weights.
        per_position: whether any reader wants a vector for each step of a sequence.
    """

    name: str
    rows: int
    dim: int
    dtype: str
    poolings: tuple[Pooling, ...]
    init: InitSpec | None
    trainable: bool
    zch: ZchConfig | None
    raw_ids: bool
    marks: Mapping[str, object]
    constraints: ParameterConstraints | None
    is_wide: bool
    beside: bool
    features: tuple[str, ...]
    weighted: bool
    per_position: bool

    @property
    def by_weighted_sum(self) -> bool:
        """Whether its bags are pooled as weighted sums, means by weights that add up to 1; a collection knows one pooling for a table.

        So are the means of ZCH tables and those of raw ids: they are sharded by rows, and the kernels' own mean over row shards is off by a
        millionth.
        """
        return self.weighted or len(self.poolings) > 1 or (self.learns_ids and Pooling.MEAN in self.poolings)

    @property
    def learns_ids(self) -> bool:
        """Whether which ids have vectors of their own depends on which are read, and how often, in training."""
        return self.zch is not None or self.raw_ids

    @property
    def spec(self) -> TableSpec:
        """The table as serving knows it."""
        kind = TableKind.DYNAMIC if self.raw_ids else TableKind.STATIC if self.zch is None else TableKind.ZCH
        return TableSpec(name=self.name, rows=self.rows, dim=self.dim, kind=kind, dtype=self.dtype)


class TableRegistry:
    """The tables, lookups and groups of a model.

    `lookups` are the pooled reads, `sequence_lookups` those that keep the steps of sequences (their pooling is within a step);
    `groups` are the DEEP and WIDE groups, `sequence_groups` all others, nested ones included; `streams` are the sequences of these.

    Args:
        features: all features, in config order; those in no group have no table.
        groups: the groups, in config order.
        wide_embedding_dim: width of every table of WIDE groups; None means 4.
        wide_init: how tables of WIDE groups begin, instead of the features' own.

    Raises:
        ConfigError: with every problem found: unknown, repeated or misplaced features, tables whose readers disagree, names that clash.
    """

    def __init__(
        self,
        features: Sequence[Feature],
        groups: Sequence[FeatureGroupConfig],
        *,
        wide_embedding_dim: int | None = None,
        wide_init: InitSpec | None = None,
    ) -> None:
        self.features = {feature.name: feature for feature in features}
        wide = WideTables(dim=wide_embedding_dim or DEFAULT_WIDE_DIM, init=wide_init)
        problems = [*feature_problems(features), *chain.from_iterable(group_problems(groups, self.features, wide))]
        if problems:
            raise ConfigError(problems)
        all_views = [view for group in groups for view in views(group) if view.features]
        reads = list(chain.from_iterable(table_reads(groups, self.features, wide)))
        self.tables = _tables(reads)
        bags = [read for read in reads if not read.per_position]
        self.lookups = _lookups(bags, self.tables, reads)
        self.sequence_lookups = _lookups([read for read in reads if read.per_position], self.tables, reads)
        self.group_order = tuple(group.group_name for group in groups)
        self.groups = tuple(self._columns(group) for group in groups if not group.is_sequence)
        self.sequence_groups = tuple(self._sequence_columns(view) for view in all_views if view.is_sequence)
        self.streams = find_streams(self.sequence_groups)

    @property
    def table_by_name(self) -> dict[str, TableEntry]:
        """The tables by name."""
        return {table.name: table for table in self.tables}

    @property
    def data_groups(self) -> tuple[str, ...]:
        """The data groups that some group reads, in the order of the groups."""
        order = {name: position for position, name in enumerate(self.group_order)}
        found = [(order[group.name], group.data_group) for group in self.groups]
        found += [(order[group.parent or group.name], group.data_group) for group in self.sequence_groups]
        return tuple(dict.fromkeys(data_group for _, data_group in sorted(found)))

    def _columns(self, group: FeatureGroupConfig) -> GroupColumns:
        view, *nested = views(group)
        names = view.features or nested[0].features
        parts = self._parts(view, view.features, self.lookups)
        data_group = self.features[names[0]].data_group
        return GroupColumns(name=view.name, kind=view.kind, data_group=data_group, encoders=group.encoders, **vars(parts))

    def _sequence_columns(self, view: GroupView) -> SequenceColumns:
        query = self._parts(view, [name for name in view.features if not self.features[name].is_sequence], self.lookups)
        sequence = self._parts(view, [name for name in view.features if self.features[name].is_sequence], self.sequence_lookups)
        dims = dict(zip((*query.features, *sequence.features), (*query.dims, *sequence.dims), strict=True))
        return SequenceColumns(
            name=view.name,
            kind=view.kind,
            data_group=self.features[view.features[0]].data_group,
            parent=view.parent,
            features=view.features,
            dims=tuple(dims[name] for name in view.features),
            query=query,
            sequence=sequence,
        )

    def _parts(self, view: GroupView, names: Sequence[str], lookups: Sequence[LookupSpec]) -> Columns:
        features = [self.features[name] for name in names]
        keys = {(lookup.feature, lookup.table): lookup for lookup in lookups}
        found = [keys.get((feature.name, table_name(feature, view))) for feature in features]
        return Columns(
            features=tuple(names),
            lookups=tuple(lookup.key if lookup is not None else None for lookup in found),
            dims=tuple(feature.output_dim if lookup is None else lookup.dim for feature, lookup in zip(features, found, strict=True)),
        )


def _tables(reads: Sequence[TableRead]) -> tuple[TableEntry, ...]:
    by_table: dict[str, list[TableRead]] = {}
    elsewhere = {read.feature.name for read in reads if read.view.kind is not GroupKind.WIDE}
    for read in reads:
        by_table.setdefault(read.table, []).append(read)
    return tuple(_table(name, readers, elsewhere) for name, readers in by_table.items())


def _table(name: str, readers: Sequence[TableRead], elsewhere: Collection[str]) -> TableEntry:
    first = readers[0]
    is_wide = first.view.kind is GroupKind.WIDE
    return TableEntry(
        name=name,
        rows=first.feature.rows,
        dim=first.dim,
        dtype=first.feature.dtype,
        poolings=tuple(dict.fromkeys(read.feature.pooling for read in readers)),
        init=first.init,
        trainable=first.feature.trainable,
        zch=first.feature.zch,
        raw_ids=first.feature.raw_ids,
        marks=first.feature.table_marks,
        constraints=first.feature.parameter_constraints(),
        is_wide=is_wide,
        beside=is_wide and any(read.feature.name in elsewhere for read in readers),
        features=tuple(dict.fromkeys(read.feature.name for read in readers)),
        weighted=any(read.feature.is_weighted for read in readers),
        per_position=any(read.per_position for read in readers),
    )


def _lookups(some: Sequence[TableRead], tables: Sequence[TableEntry], reads: Sequence[TableRead]) -> tuple[LookupSpec, ...]:
    """One lookup for each reader of each table, in the order of the modules that do them: pooled before per position, then plain before ZCH.

    Args:
        some: those to list.
        tables: all tables.
        reads: all reads: a feature that reads several tables, in whatever way, has their names in its keys.
    """
    count = {name: len({read.table for read in reads if read.feature.name == name}) for name in {read.feature.name for read in some}}
    ordered = sorted(tables, key=lambda table: (table.per_position, table.zch is not None, table.by_weighted_sum and not table.per_position))
    found = {table.name: {read.feature.name: read for read in some if read.table == table.name} for table in ordered}
    return tuple(
        LookupSpec(
            key=name if count[name] == 1 else f"{name}@{table}",
            feature=name,
            table=table,
            pooling=read.feature.pooling,
            dim=read.dim,
            weighted=read.feature.is_weighted,
        )
        for table, readers in found.items()
        for name, read in readers.items()
    )
