"""Names of tensors in checkpoints, whatever module holds them."""

from typing import Any, cast

import pytest
import torch
from torch import nn

from emberline.schema import BucketEncoder, FeatureKind, FeatureSpec, GroupKind, RawIdEncoder
from emberline.train.checkpoint.id_maps import id_map_tensors, load_id_maps
from emberline.train.checkpoint.names import dense_tensors, table_tensors
from emberline.train.config.group_configs import FeatureGroupConfig, SequenceGroupConfig
from emberline.train.embedding import EmbeddingGroup
from emberline.train.encoders import SelfAttentionEncoderConfig
from emberline.train.features import Feature, LfuPolicy, MlpEmbeddingConfig, ZchConfig

ZCH = ZchConfig(zch_size=4, eviction_interval=1, eviction_policy=LfuPolicy())


def feature(name: str, table: str, *, sequence: bool = False, zch: ZchConfig | None = None) -> Feature:
    encoder = RawIdEncoder() if zch is not None else BucketEncoder(rows=4)
    kind = FeatureKind.SPARSE
    spec = FeatureSpec(name=name, kind=kind, columns=(name,), encoder=encoder, sequence=sequence, value_dim=1 if sequence else 0)
    return Feature(name=name, spec=spec, embedding_dim=4, embedding_name=table, rows=4, zch=zch)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        features = [
            feature("item", "user"),
            feature("seq", "user", sequence=True),
            feature("other", "other"),
            feature("zch", "zch", sequence=True, zch=ZCH),
        ]
        nested = SequenceGroupConfig(feature_names=("seq",))
        encoder = SelfAttentionEncoderConfig(multihead_attn_dim=4, num_heads=1)
        deep = FeatureGroupConfig(group_name="deep", feature_names=("item", "other"), sequence_groups=(nested,), sequence_encoders=(encoder,))
        steps = FeatureGroupConfig(group_name="steps", feature_names=("zch",), group_type=GroupKind.JAGGED_SEQUENCE)
        self.embedding_group = EmbeddingGroup(features, [deep, steps])
        self.head = nn.Linear(2, 1)


@pytest.fixture
def model() -> Any:
    return cast(Any, Model())


def test_a_table_has_one_name_though_it_is_read_pooled_and_step_by_step(model: Any) -> None:
    tensors = table_tensors(model)
    assert list(tensors) == ["tables/other/weight", "tables/user/weight", "tables/zch/weight"]
    for name, weight in model.embedding_group.table_weights().items():
        assert tensors[f"tables/{name}/weight"].data_ptr() == weight.data_ptr()


def test_every_tensor_of_the_model_has_a_name(model: Any) -> None:
    names = {*table_tensors(model), *dense_tensors(model)}
    prefixes = {name.split(".")[1] for name in dense_tensors(model) if "embedding_group" in name}
    assert prefixes == {"encoders"}
    parameters = sum(parameter.numel() for parameter in model.parameters())
    assert sum(tensor.numel() for tensor in {**table_tensors(model), **dense_tensors(model)}.values()) == parameters
    assert len(names) == len(list(model.parameters()))


def test_id_maps_of_sequences_come_back(model: Any) -> None:
    module = next(one for one in model.modules() if hasattr(one, "rows_of"))
    module.train()
    module._history_ids, module._history_iters = [torch.tensor([5, 6])], [0]
    state = cast(dict[str, torch.Tensor], id_map_tensors(model))
    assert all(name.startswith("zch/zch/") for name in state)
    other = cast(Any, Model())
    load_id_maps(other, state, {})
    assert all(torch.equal(state[name], cast(torch.Tensor, tensor)) for name, tensor in id_map_tensors(other).items())


def test_dense_embeddings_of_steps_are_kept() -> None:
    spec = FeatureSpec(name="n", kind=FeatureKind.DENSE, columns=("n",), encoder=BucketEncoder(rows=1), value_dim=1, sequence=True)
    embedded = Feature(name="n", spec=spec, embedding_dim=2, dense_embedding=MlpEmbeddingConfig())
    other = cast(Any, Model())
    other.embedding_group = EmbeddingGroup([embedded], [FeatureGroupConfig(group_name="g", feature_names=("n",), group_type=GroupKind.SEQUENCE)])
    names = [name for name in dense_tensors(other) if "embedding_group" in name]
    assert names == ["dense/embedding_group.seq_emb_impls.__BASE__.dense_ecs.steps_n.embeddings.mlp_2.proj_w_n"]
