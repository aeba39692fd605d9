"""DLRM and DeepFM against their formulas written out, and what they refuse."""

from typing import Any

import pytest
import torch
from torch import Tensor

from emberline.errors import ConfigError
from emberline.train.config import PipelineConfig, parse_config
from emberline.train.models import RecModel, build_model, features_of
from emberline.train.models.deepfm import DeepFmHead
from emberline.train.models.dlrm import DlrmHead

FEATURES = """
feature_configs { id_feature { feature_name: "a" embedding_dim: 4 num_buckets: 5 } }
feature_configs { id_feature { feature_name: "b" embedding_dim: 4 num_buckets: 5 } }
feature_configs { id_feature { feature_name: "c" embedding_dim: 8 num_buckets: 5 } }
feature_configs { raw_feature { feature_name: "x" value_dim: 3 } }
"""
DENSE = 'feature_groups { group_name: "dense" feature_names: "x" }'
SPARSE = 'feature_groups { group_name: "sparse" feature_names: "a" feature_names: "b" }'
WIDE = 'feature_groups { group_name: "wide" group_type: WIDE feature_names: "a" feature_names: "c" }'
DEEP = 'feature_groups { group_name: "deep" feature_names: "a" feature_names: "b" }'
MIXED = 'feature_groups { group_name: "deep" feature_names: "a" feature_names: "b" feature_names: "c" feature_names: "x" }'
FM = 'feature_groups { group_name: "fm" feature_names: "b" feature_names: "a" }'


def config_of(model: str, *groups: str) -> PipelineConfig:
    return parse_config(f"{FEATURES} model_config {{ {' '.join(groups)} {model} }}")


def model_of(model: str, *groups: str) -> RecModel:
    config = config_of(model, *groups)
    return build_model(config, features_of(config)).eval()


def linear(module: Any, inputs: Tensor) -> Tensor:
    result: Tensor = inputs @ module.weight.T + module.bias
    return result


@pytest.mark.parametrize("with_sparse", [True, False])
def test_dlrm_is_its_formula(with_sparse: bool) -> None:
    model = model_of(
        f"dlrm {{ dense_mlp {{ hidden_units: 4 }} final {{ hidden_units: 6 }} arch_with_sparse: {str(with_sparse).lower()} }}", DENSE, SPARSE
    )
    head = model.head
    assert isinstance(head, DlrmHead)
    dense, sparse = torch.randn(7, 3), torch.randn(7, 8)
    lifted = linear(head.dense_mlp.layers[0], dense).clamp(min=0)
    a, b = sparse[:, :4], sparse[:, 4:]
    products = [(a * lifted).sum(1, keepdim=True), (b * lifted).sum(1, keepdim=True), (b * a).sum(1, keepdim=True)]
    joined = torch.cat([lifted, *products, *([sparse] if with_sparse else [])], dim=1)
    expected = linear(head.output, linear(head.final_mlp.layers[0], joined).clamp(min=0))[:, 0]
    torch.testing.assert_close(head({"dense": dense, "sparse": sparse})["logits"], expected)


@pytest.mark.parametrize("final", [False, True])
def test_deepfm_is_its_formula(final: bool) -> None:
    model = model_of(f"deepfm {{ deep {{ hidden_units: 6 }} {'final { hidden_units: 5 }' if final else ''} }}", WIDE, MIXED, FM)
    head = model.head
    assert isinstance(head, DeepFmHead)
    wide, deep, fm = torch.randn(7, 8), torch.randn(7, 19), torch.randn(7, 8)
    through = linear(head.deep_mlp.layers[0], deep).clamp(min=0)
    pairs = fm[:, :4] * fm[:, 4:]
    if head.final_mlp is None:
        expected = wide.sum(1) + pairs.sum(1) + linear(head.output, through)[:, 0]
    else:
        joined = torch.cat([wide.sum(1, keepdim=True), pairs, through], dim=1)
        expected = linear(head.output, linear(head.final_mlp.layers[0], joined).clamp(min=0))[:, 0]
    assert (head.final_mlp is not None) is final
    torch.testing.assert_close(head({"wide": wide, "deep": deep, "fm": fm})["logits"], expected)


def test_deepfm_takes_its_vectors_from_deep_where_there_is_no_fm() -> None:
    model = model_of("deepfm { deep { hidden_units: 6 } wide_embedding_dim: 8 wide_init_fn: 'nn.init.zeros_' }", WIDE, DEEP)
    assert model.embedding_group.group_dims("wide") == [8, 8]
    head = model.head
    assert isinstance(head, DeepFmHead)
    assert (head.fm_group, head.num_vectors, head.dim) == ("deep", 2, 4)
    tables = model.embedding_group.pooled.table_weights()
    assert torch.equal(tables["a_emb_wide"], torch.zeros(5, 8))


@pytest.mark.parametrize(
    ("model", "groups", "message"),
    [
        (
            "dlrm { dense_mlp { hidden_units: 4 } final { hidden_units: 6 } }",
            [SPARSE],
            "needs the feature groups 'dense' and 'sparse'; missing: dense",
        ),
        ("dlrm { dense_mlp { hidden_units: 5 } final { hidden_units: 6 } }", [DENSE, SPARSE], "last layer, 5; a has 4, b has 4"),
        ("deepfm { deep { hidden_units: 4 } }", [DEEP], "deepfm needs the feature groups 'wide' and 'deep'; missing: wide"),
        (
            "deepfm { deep { hidden_units: 4 } }",
            [WIDE, MIXED],
            "or add a group 'fm' of those features that interact; a has 4, b has 4, c has 8",
        ),
        ("num_class: 3 losses { softmax_cross_entropy {} } deepfm { deep { hidden_units: 4 } }", [WIDE, DEEP], "3 classes need `final`"),
        ("num_class: 3 deepfm { deep { hidden_units: 4 } }", [WIDE, DEEP], "num_class"),
        ("losses { softmax_cross_entropy {} } deepfm { deep { hidden_units: 4 } }", [WIDE, DEEP], "num_class"),
        ("losses { binary_cross_entropy {} } losses { l2_loss {} } deepfm { deep { hidden_units: 4 } }", [WIDE, DEEP], "losses"),
    ],
)
def test_what_does_not_fit_is_refused(model: str, groups: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("[", r"\[")):
        model_of(model, *groups)
