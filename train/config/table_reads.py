"""Which table a feature reads in a group."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from emberline.schema import GroupKind
from emberline.train.config.functions import InitSpec
from emberline.train.config.group_configs import FeatureGroupConfig
from emberline.train.features.feature import Feature

DEFAULT_WIDE_DIM = 4
SEQUENCE_KINDS = (GroupKind.SEQUENCE, GroupKind.JAGGED_SEQUENCE)


@dataclass(frozen=True, kw_only=True)
class WideTables:
    """What all tables of WIDE groups have in common.

    Args:
        dim: their width.
        init: how they begin; None: as the features say.
    """

    dim: int = DEFAULT_WIDE_DIM
    init: InitSpec | None = None


@dataclass(frozen=True, kw_only=True)
class GroupView:
    """A group as one reader of features, or one sequence group nested in it.

    Args:
        name: the group's, or the nested group's.
        kind: how the features are laid out; SEQUENCE for nested groups.
        features: their names, in order.
        suffix: added to the tables' names.
        parent: the DEEP group that holds it; empty for top-level groups.
    """

    name: str
    kind: GroupKind
    features: tuple[str, ...]
    suffix: str
    parent: str = ""

    @property
    def is_sequence(self) -> bool:
        """Whether sequence features keep their steps here."""
        return self.kind in SEQUENCE_KINDS

    @property
    def where(self) -> str:
        """The group as messages name it."""
        return f"feature_groups {self.parent!r}: {self.place}" if self.parent else f"feature_groups {self.name!r}"

    @property
    def place(self) -> str:
        """The nested group as messages about its group name it; empty for the group itself."""
        return f"sequence_groups {self.name!r}" if self.parent else ""


def views(group: FeatureGroupConfig) -> Iterable[GroupView]:
    """The group by itself, then its nested sequence groups."""
    yield GroupView(name=group.group_name, kind=group.group_type, features=group.feature_names, suffix=group.embedding_name_suffix)
    for nested in group.nested_groups:
        yield GroupView(
            name=nested.group_name,
            kind=GroupKind.SEQUENCE,
            features=nested.feature_names,
            suffix=nested.embedding_name_suffix or "",
            parent=group.group_name,
        )


@dataclass(frozen=True)
class TableRead:
    """One feature of one group against the table that the group's kind and suffix lead to."""

    table: str
    feature: Feature
    view: GroupView
    dim: int
    init: InitSpec | None

    @property
    def per_position(self) -> bool:
        """Whether each step keeps a vector of its own; otherwise a row's ids are pooled."""
        return self.view.is_sequence and self.feature.is_sequence

    @property
    def origin(self) -> tuple[str, bool, str]:
        """What the table's name was made of: embedding_name, whether wide, suffix."""
        return self.feature.embedding_name, self.view.kind is GroupKind.WIDE, self.view.suffix


def table_name(feature: Feature, view: GroupView) -> str:
    """The table that `feature` reads in `view`: embedding_name, then `_wide` in WIDE groups, then the group's suffix."""
    wide = "_wide" if view.kind is GroupKind.WIDE else ""
    suffix = f"_{view.suffix}" if view.suffix else ""
    return f"{feature.embedding_name}{wide}{suffix}"


def table_reads(groups: Sequence[FeatureGroupConfig], features: Mapping[str, Feature | None], wide: WideTables | None) -> Iterator[list[TableRead]]:
    """The reads of each group, its sequence groups' last; features that there are not, or that have problems, are left out.

    Args:
        groups: in the config's order.
        features: by name; None for one that has problems of its own.
        wide: what tables of WIDE groups have in common; None: not known, so that they count as beginning alike.
    """
    for group in groups:
        yield [read for view in views(group) for read in _reads(view, features, wide)]


def _reads(view: GroupView, features: Mapping[str, Feature | None], wide: WideTables | None) -> Iterator[TableRead]:
    for name in view.features:
        feature = features.get(name)
        if feature is None or not feature.is_sparse:
            continue
        dim, init = feature.embedding_dim, feature.init
        if view.kind is GroupKind.WIDE:
            dim, init = (DEFAULT_WIDE_DIM, None) if wide is None else (wide.dim, wide.init or init)
        yield TableRead(table_name(feature, view), feature, view, dim, init)
