"""Names of parts: the reference's for what it has, ours for the rest."""

import pytest
import torch
from torch import nn

from emberline.train.checkpoint.tensors import TensorInfo
from emberline.train.config import parse_config
from emberline.train.config.model_config import MlpConfig
from emberline.train.encoders import DinEncoderConfig, build_encoder
from emberline.train.interop.parts import fits, head_parts, is_redundant, part_of
from emberline.train.models import build_model, features_of
from emberline.train.models.mlp import MLP

GROUP = "emb_impls.__BASE__"


@pytest.mark.parametrize(
    ("name", "part"),
    [
        (f"{GROUP}.ebc.embedding_bags.t.weight", "tables.t"),
        (f"{GROUP}.ebc_user.embedding_bags.t.weight", "tables.t"),
        ("emb_impls.__NEG__.mc_ebc._embedding_module.embedding_bags.t.weight", "tables.t"),
        (f"seq_{GROUP}.ec_dict.8.embeddings.t.weight", "tables.t"),
        (f"seq_{GROUP}.ec_dict_user.8.embeddings.t.weight", "tables.t"),
        (f"seq_{GROUP}.ec_list.0.embeddings.t.weight", "tables.t"),
        (f"seq_{GROUP}.mc_ec_dict.8._embedding_module.embeddings.t.weight", "tables.t"),
        (f"{GROUP}.mc_ebc._managed_collision_collection._managed_collision_modules.t._mch_counts", "id_maps.t._mch_counts"),
        (f"{GROUP}.dense_ec.dense_embs.mlp#5#vdim#3#feature_name#            v.proj_w_v.weight", "dense_embeddings.__BASE__.proj_w_v"),
        ("_group_name_to_seq_encoders.deep.1._query.bias", "encoders.deep.1._query.bias"),
        (f"{GROUP}.ebc.embedding_bags.t.bias", None),
        ("x" + f"{GROUP}.ebc.embedding_bags.t.weight", None),
        ("", None),
    ],
)
def test_part_of(name: str, part: str | None) -> None:
    assert part_of(name) == part


def test_what_repeats_the_config_is_redundant_only_beside_its_part() -> None:
    parts = {"id_maps.t._mch_counts": None, "encoders.g.0.active.weight": None}
    assert is_redundant("id_maps.t._output_segments_tensor", parts)
    assert is_redundant("encoders.g.0.windows_len", parts)
    assert not is_redundant("id_maps.u._output_segments_tensor", parts)
    assert not is_redundant("id_maps.t._mch_counts", parts)


def test_only_dense_embeddings_may_lack_a_leading_one() -> None:
    flat, row = TensorInfo((4,), torch.float32), TensorInfo((1, 4), torch.float32)
    assert fits("dense_embeddings.__BASE__.proj_w_x", flat, row)
    assert not fits("head.output.weight", flat, row)


def test_layers_of_mlps_count_as_the_reference_counts() -> None:
    """Linear, normalisation, activation, dropout make a block; their places count within it."""
    head = nn.Module()
    head.deep_mlp = MLP(3, MlpConfig(hidden_units=(4,) * 11, use_bn=True, dropout_ratio=(0.1,)))
    head.din_towers = nn.ModuleList([build_encoder(DinEncoderConfig(input="s", attn_mlp=MlpConfig(hidden_units=(5,))), 2, 2)])
    head.output = nn.Linear(4, 1)
    names = list(head_parts(head))
    blocks = [f"head.deep_mlp.mlp.{block}.perceptron" for block in range(11)]
    assert [name for name in names if name.endswith("perceptron.0.weight") and "deep" in name] == [f"{block}.0.weight" for block in blocks]
    assert [name for name in names if name.endswith("running_var")] == [f"{block}.1.running_var" for block in blocks]
    assert names[-6:] == [
        "head.din_towers.0.mlp.mlp.0.perceptron.0.weight",
        "head.din_towers.0.mlp.mlp.0.perceptron.0.bias",
        "head.din_towers.0.linear.weight",
        "head.din_towers.0.linear.bias",
        "head.output.weight",
        "head.output.bias",
    ]


def test_heads_keep_their_own_names_around_them() -> None:
    config = parse_config("""
      feature_configs { id_feature { feature_name: "a" embedding_dim: 4 num_buckets: 5 } }
      model_config {
        feature_groups { group_name: "all" feature_names: "a" }
        mmoe { expert_mlp { hidden_units: 2 } num_expert: 2 task_towers { tower_name: "t" label_name: "l" mlp { hidden_units: 3 } } }
      }""")
    head = build_model(config, features_of(config)).head
    assert [name for name in head_parts(head) if name.endswith("weight")] == [
        "head.experts.0.mlp.0.perceptron.0.weight",
        "head.experts.1.mlp.0.perceptron.0.weight",
        "head.gates.0.linear.weight",
        "head.task_towers.0.mlp.mlp.0.perceptron.0.weight",
        "head.task_towers.0.output.weight",
    ]
    live = head_parts(head)["head.gates.0.linear.weight"]
    live.fill_(3.0)
    assert head.state_dict()["gates.0.linear.weight"].eq(3.0).all()
