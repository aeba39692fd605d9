"""What of a model becomes a program, and what does not yet."""

from typing import Any, cast

import pytest
from torch import nn

from emberline.errors import ExportError
from emberline.schema import BucketEncoder, FeatureKind, FeatureSpec, GroupKind
from emberline.train.config.group_configs import FeatureGroupConfig, SequenceGroupConfig
from emberline.train.embedding import EmbeddingGroup
from emberline.train.encoders import PoolingEncoderConfig
from emberline.train.features import Feature
from emberline.train.models.model import GroupsProgram


class Model(nn.Module):
    def __init__(self, *groups: FeatureGroupConfig) -> None:
        super().__init__()
        features = []
        for name in "as":
            spec = FeatureSpec(name=name, kind=FeatureKind.SPARSE, columns=(name,), encoder=BucketEncoder(rows=4), sequence=name == "s", value_dim=1)
            features.append(Feature(name=name, spec=spec, embedding_dim=4, embedding_name=f"{name}_emb", rows=4))
        self.embedding_group = EmbeddingGroup(features, groups)


def test_a_program_holds_no_table() -> None:
    program = GroupsProgram(cast(Any, Model(FeatureGroupConfig(group_name="g", feature_names=("a", "s")))))
    assert list(program.parameters()) == []


def test_groups_of_sequences_are_refused_by_name() -> None:
    nested = SequenceGroupConfig(group_name="inner", feature_names=("s",))
    deep = FeatureGroupConfig(group_name="deep", feature_names=("a",), sequence_groups=(nested,), sequence_encoders=(PoolingEncoderConfig(),))
    steps = FeatureGroupConfig(group_name="steps", feature_names=("s",), group_type=GroupKind.JAGGED_SEQUENCE)
    with pytest.raises(ExportError, match="models with sequences can be trained, but not exported yet; these groups have some: deep, steps"):
        GroupsProgram(cast(Any, Model(deep, steps)))
