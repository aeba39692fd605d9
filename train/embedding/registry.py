"""Which tables a model has, who reads them, and how groups are put together: plain data, made before any module.

One name is one physical table, in all groups and data groups. Whatever does not fit is refused here, all at once, by name.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from emberline.errors import ConfigError
from emberline.schema import GroupKind, GroupSpec, LookupSpec, Pooling, TableKind, TableSpec
from emberline.train.config.functions import InitSpec
from emberline.train.config.group_configs import FeatureGroupConfig
from emberline.train.embedding.conflicts import feature_problems, group_problems, origin_problems, sharing_problems
from emberline.train.embedding.reads import TableRead, table_name
from emberline.train.features import EmbeddingConstraints, Feature, ZchConfig

DEFAULT_WIDE_DIM = 4


@dataclass(frozen=True, kw_only=True)
class TableEntry:
    """One physical table and all that a config says about it.

    Args:
        name: unique.
        rows: vectors; for ZCH the fallback row is one of them.
        dim: width of a vector.
        dtype: fp32 or fp16.
        pooling: of every bag that reads it.
        init: how it begins; None means uniform in +-sqrt(1 / rows).
        trainable: False freezes it.
        zch: settings of its id map, or None where ids are rows.
        constraints: what a planner may choose.
        features: names of its readers, in the order of the groups.
        weighted: whether any reader's ids have weights.
    """

    name: str
    rows: int
    dim: int
    dtype: str
    pooling: Pooling
    init: InitSpec | None
    trainable: bool
    zch: ZchConfig | None
    constraints: EmbeddingConstraints | None
    features: tuple[str, ...]
    weighted: bool

    @property
    def by_weighted_sum(self) -> bool:
        """Whether its bags are pooled as weighted sums, means by weights that add up to 1.

        So are the means of ZCH tables: they are sharded by rows, and the kernels' own mean over row shards is off by a millionth.
        """
        return self.weighted or (self.zch is not None and self.pooling is Pooling.MEAN)

    @property
    def spec(self) -> TableSpec:
        """The table as serving knows it."""
        kind = TableKind.STATIC if self.zch is None else TableKind.ZCH
        return TableSpec(name=self.name, rows=self.rows, dim=self.dim, kind=kind, dtype=self.dtype)


@dataclass(frozen=True, kw_only=True)
class GroupColumns:
    """How one group's tensor is put together.

    Args:
        name: the group's.
        kind: DEEP or WIDE.
        data_group: of all its features.
        features: their names, in order.
        lookups: for each feature the key of the lookup that feeds it, or None for a dense feature.
        dims: the width of each feature's part.
    """

    name: str
    kind: GroupKind
    data_group: str
    features: tuple[str, ...]
    lookups: tuple[str | None, ...]
    dims: tuple[int, ...]

    @property
    def dense_features(self) -> tuple[str, ...]:
        """Names of the features that read no table, in order."""
        return tuple(name for name, key in zip(self.features, self.lookups, strict=True) if key is None)

    @property
    def spec(self) -> GroupSpec:
        """The group as serving knows it."""
        return GroupSpec(name=self.name, kind=self.kind, dim=sum(self.dims))


class TableRegistry:
    """The tables, lookups and groups of a model.

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
        self._wide_dim = wide_embedding_dim or DEFAULT_WIDE_DIM
        self._wide_init = wide_init
        problems = [*feature_problems(features), *group_problems(groups, self.features)]
        if problems:
            raise ConfigError(problems)
        reads = [read for group in groups for read in self._reads(group)]
        problems = [*origin_problems(reads), *sharing_problems(reads)]
        if problems:
            raise ConfigError(problems)
        self.tables = _tables(reads)
        self.lookups = _lookups(self.tables, self.features)
        self.groups = tuple(self._columns(group) for group in groups)

    @property
    def table_by_name(self) -> dict[str, TableEntry]:
        """The tables by name."""
        return {table.name: table for table in self.tables}

    def _reads(self, group: FeatureGroupConfig) -> Iterable[TableRead]:
        wide = group.group_type is GroupKind.WIDE
        for name in group.feature_names:
            feature = self.features[name]
            if feature.is_sparse:
                dim = self._wide_dim if wide else feature.embedding_dim
                init = self._wide_init or feature.init if wide else feature.init
                yield TableRead(table_name(feature, group), feature, group, dim, init)

    def _columns(self, group: FeatureGroupConfig) -> GroupColumns:
        features = [self.features[name] for name in group.feature_names]
        keys = {(lookup.feature, lookup.table): lookup for lookup in self.lookups}
        found = [keys.get((feature.name, table_name(feature, group))) for feature in features]
        return GroupColumns(
            name=group.group_name,
            kind=group.group_type,
            data_group=features[0].data_group,
            features=tuple(group.feature_names),
            lookups=tuple(lookup.key if lookup is not None else None for lookup in found),
            dims=tuple(feature.output_dim if lookup is None else lookup.dim for feature, lookup in zip(features, found, strict=True)),
        )


def _tables(reads: Sequence[TableRead]) -> tuple[TableEntry, ...]:
    by_table: dict[str, list[TableRead]] = {}
    for read in reads:
        by_table.setdefault(read.table, []).append(read)
    entries = []
    for name, readers in by_table.items():
        first = readers[0]
        entries.append(
            TableEntry(
                name=name,
                rows=first.feature.rows,
                dim=first.dim,
                dtype=first.feature.dtype,
                pooling=first.feature.pooling,
                init=first.init,
                trainable=first.feature.trainable,
                zch=first.feature.zch,
                constraints=first.feature.constraints,
                features=tuple(dict.fromkeys(read.feature.name for read in readers)),
                weighted=any(read.feature.is_weighted for read in readers),
            )
        )
    return tuple(entries)


def _lookups(tables: Sequence[TableEntry], features: Mapping[str, Feature]) -> tuple[LookupSpec, ...]:
    """One lookup for each reader of each table, ordered by the module that does it: plain, weighted sums, ZCH, weighted sums of ZCH."""
    count = {name: sum(name in table.features for table in tables) for name in features}
    ordered = sorted(tables, key=lambda table: (table.zch is not None, table.by_weighted_sum))
    return tuple(
        LookupSpec(
            key=name if count[name] == 1 else f"{name}@{table.name}",
            feature=name,
            table=table.name,
            pooling=table.pooling,
            dim=table.dim,
            weighted=features[name].is_weighted,
        )
        for table in ordered
        for name in table.features
    )
