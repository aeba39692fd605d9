"""Which features make up which of the model's input tensors."""

from dataclasses import dataclass

from emberline.schema import GroupKind


@dataclass(frozen=True, kw_only=True)
class FeatureGroupConfig:
    """One input tensor of the model: the features of `feature_names`, side by side in that order.

    Args:
        group_name: unique in a config, without dots.
        feature_names: names of features, each once.
        group_type: DEEP (embeddings and numbers) or WIDE (sparse features only, in small tables of their own).
        embedding_name_suffix: added to the tables' names, so that groups of other suffixes have tables of their own; empty: none.
    """

    group_name: str
    feature_names: tuple[str, ...] = ()
    group_type: GroupKind = GroupKind.DEEP
    embedding_name_suffix: str = ""
