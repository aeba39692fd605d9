"""Sequences in groups: query, steps and number of steps, against values worked out by hand."""

from typing import Any

import pytest
import torch
from torch import Tensor

from emberline.errors import DataError
from emberline.schema import GroupKind, Pooling
from emberline.train.config.group_configs import FeatureGroupConfig, SequenceGroupConfig
from emberline.train.data import Batch
from emberline.train.embedding import EmbeddingGroup
from emberline.train.encoders import PoolingEncoderConfig, SimpleAttentionConfig
from emberline.train.features import AutoDisConfig, LfuPolicy, MlpEmbeddingConfig, ZchConfig

SEQ, JAGGED = GroupKind.SEQUENCE, GroupKind.JAGGED_SEQUENCE


def first(tensor: Tensor) -> list[Any]:
    """The first number of each vector: `counted` tables hold constants in a row."""
    return tensor[..., 0].tolist()


def test_query_steps_and_their_number(make: Any) -> None:
    features = [make.sparse("item"), make.sequence("s"), make.numbers("t", 2)]
    group = EmbeddingGroup(features, [make.group("g", "s", "item", "t", group_type=SEQ)])
    make.counted(group, item_emb=100, s_emb=0)
    batch = make.steps({"item": [[1], [], [3]], "s": [[4, 5], [], [6]], "t": [[[0.1, 0.2], [0.3, 0.4]], [], [[0.5, 0.6]]]})
    found = group(batch)
    assert list(found) == ["g.query", "g.sequence", "g.sequence_length"]
    assert first(found["g.query"]) == [101, 0, 103]
    zeros = [0.0] * 6
    expected = [[[4, 4, 4, 4, 0.1, 0.2], [5, 5, 5, 5, 0.3, 0.4]], [zeros, zeros], [[6, 6, 6, 6, 0.5, 0.6], zeros]]
    assert torch.equal(found["g.sequence"], torch.tensor(expected))
    assert found["g.sequence_length"].tolist() == [2, 0, 1]


def test_a_jagged_group_is_not_padded_and_agrees_with_a_padded_one(make: Any) -> None:
    features = [make.sparse("item"), make.sequence("s")]
    groups = [make.group("j", "item", "s", group_type=JAGGED), make.group("p", "item", "s", group_type=SEQ)]
    group = EmbeddingGroup(features, groups)
    found = group(make.steps({"item": [[1], [2]], "s": [[4, 5, 6], [7]]}))
    assert found["j.sequence"].shape == (4, 4)
    assert found["p.sequence"].shape == (2, 3, 4)
    assert torch.equal(found["j.sequence"], torch.cat([found["p.sequence"][0], found["p.sequence"][1, :1]]))
    assert torch.equal(found["j.query"], found["p.query"])
    assert [table.name for table in group.tables] == ["item_emb", "s_emb"]
    assert [lookup.key for lookup in group.sequence_lookups] == ["s"]
