"""Which features make up which of the model's input tensors."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from emberline.schema import GroupKind

if TYPE_CHECKING:
    from emberline.train.encoders.configs import EncoderConfig


@dataclass(frozen=True, kw_only=True)
class SequenceGroupConfig:
    """A query and a padded sequence inside of a DEEP group, for the group's encoders.

    Args:
        group_name: unique among all groups of a config; may be empty where a DEEP group has one such group, which then has the DEEP group's name.
        feature_names: sequence features make up the sequence, all others the query.
        embedding_name_suffix: added to the tables' names; None: as the DEEP group says.
    """

    group_name: str = ""
    feature_names: tuple[str, ...] = ()
    embedding_name_suffix: str | None = None


@dataclass(frozen=True, kw_only=True)
class FeatureGroupConfig:
    """One input of the model: the features of `feature_names`, side by side in that order.

    Args:
        group_name: unique in a config, without dots.
        feature_names: names of features, each once.
        group_type: DEEP (embeddings and numbers), WIDE (sparse features only, in small tables of their own), SEQUENCE or JAGGED_SEQUENCE
            (sequence features make up the sequence, padded or not, all others the query).
        sequence_groups: DEEP only: sequences for the encoders, as the config has them; `nested_groups` has them with all defaults filled in.
        sequence_encoders: DEEP only: their outputs follow the features; `encoders` has them with all defaults filled in.
        embedding_name_suffix: added to the tables' names, so that groups of other suffixes have tables of their own; empty: none.
    """

    group_name: str
    feature_names: tuple[str, ...] = ()
    group_type: GroupKind = GroupKind.DEEP
    sequence_groups: tuple[SequenceGroupConfig, ...] = ()
    sequence_encoders: "tuple[EncoderConfig, ...]" = ()
    embedding_name_suffix: str = ""

    @property
    def is_sequence(self) -> bool:
        """Whether it is a SEQUENCE or JAGGED_SEQUENCE group."""
        return self.group_type in (GroupKind.SEQUENCE, GroupKind.JAGGED_SEQUENCE)

    @property
    def all_feature_names(self) -> tuple[str, ...]:
        """The features of the group and of its sequence groups, in order; a feature of several is named several times."""
        return (*self.feature_names, *(name for nested in self.sequence_groups for name in nested.feature_names))

    @property
    def nested_groups(self) -> tuple[SequenceGroupConfig, ...]:
        """The sequence groups: a single one without a name has this group's, and each without a suffix has this group's."""
        single = self.group_name if len(self.sequence_groups) == 1 else ""
        return tuple(
            replace(
                nested,
                group_name=nested.group_name or single,
                embedding_name_suffix=self.embedding_name_suffix if nested.embedding_name_suffix is None else nested.embedding_name_suffix,
            )
            for nested in self.sequence_groups
        )

    @property
    def encoders(self) -> "tuple[EncoderConfig, ...]":
        """The encoders: where there is one sequence group, it is the input of each that names none."""
        single = self.nested_groups[0].group_name if len(self.sequence_groups) == 1 else ""
        return tuple(replace(encoder, input=encoder.input or single) for encoder in self.sequence_encoders)
