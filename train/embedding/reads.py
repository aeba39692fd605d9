"""Which table a feature reads in a group."""

from dataclasses import dataclass

from emberline.schema import GroupKind
from emberline.train.config.functions import InitSpec
from emberline.train.config.group_configs import FeatureGroupConfig
from emberline.train.features import Feature


@dataclass(frozen=True)
class TableRead:
    """One feature of one group against the table that the group's kind and suffix lead to."""

    table: str
    feature: Feature
    group: FeatureGroupConfig
    dim: int
    init: InitSpec | None

    @property
    def origin(self) -> tuple[str, bool, str]:
        """What the table's name was made of: embedding_name, whether wide, suffix."""
        return self.feature.embedding_name, self.group.group_type is GroupKind.WIDE, self.group.embedding_name_suffix


def table_name(feature: Feature, group: FeatureGroupConfig) -> str:
    """The table that `feature` reads in `group`: embedding_name, then `_wide` in WIDE groups, then the group's suffix."""
    wide = "_wide" if group.group_type is GroupKind.WIDE else ""
    suffix = f"_{group.embedding_name_suffix}" if group.embedding_name_suffix else ""
    return f"{feature.embedding_name}{wide}{suffix}"
