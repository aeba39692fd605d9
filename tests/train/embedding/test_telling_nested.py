"""DEEP groups with sequences inside: encoders' outputs beside the features, in every form of the program."""

from typing import Any

import pytest
import torch

from emberline.schema import GroupKind
from emberline.train.config.group_configs import FeatureGroupConfig
from emberline.train.config.model_config import MlpConfig
from emberline.train.encoders import DinEncoderConfig, PoolingEncoderConfig, SimpleAttentionConfig
from tests.train.embedding.telling import BUY, CLICK, FORMS, TABLES, features, nested, sequence_rows, system

pytestmark = pytest.mark.filterwarnings("ignore:The TorchScript type system:UserWarning")
DIN, SIMPLE = DinEncoderConfig(input="nested_click", attn_mlp=MlpConfig(hidden_units=(128, 64))), SimpleAttentionConfig(input="nested_buy")
ROWS = sequence_rows()
OTHERS = [ROWS, sequence_rows((4, 0), (1, 2)), sequence_rows((0, 0), (0, 0)), sequence_rows((0, 5, 2), (4, 0, 1))]


def all_groups(make: Any) -> list[FeatureGroupConfig]:
    inner = (nested("nested_click", *CLICK), nested("nested_buy", *BUY))
    return [
        make.group("wide", "cat_a", "cat_b", group_type=GroupKind.WIDE),
        make.group("deep", "cat_a", "cat_b", "int_a", sequence_groups=inner, sequence_encoders=(DIN, SIMPLE)),
        make.group("only_buy", sequence_groups=(nested("", *BUY),), sequence_encoders=(SimpleAttentionConfig(),)),
        make.group("click", *CLICK, group_type=GroupKind.SEQUENCE),
        make.group("buy", *BUY, group_type=GroupKind.SEQUENCE),
    ]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("tables", TABLES)
def test_wide_deep_and_sequences_in_one_system(make: Any, tables: str, form: str) -> None:
    asked = system(make, features(tables), all_groups(make), ROWS, form)
    group = asked.group
    assert (group.group_dims("deep"), group.group_total_dim("deep")) == ([16, 8, 1, 25, 17], 67)
    assert group.group_feature_dims("deep") == {"cat_a": 16, "cat_b": 8, "int_a": 1, "deep_seq_encoder_0": 25, "deep_seq_encoder_1": 17}
    assert (group.group_dims("only_buy"), group.group_feature_dims("only_buy")) == ([17], {"only_buy_seq_encoder_0": 17})
    found, unequal = [asked.check(rows) for rows in OTHERS][:2]
    shapes = {key: tuple(tensor.shape) for key, tensor in found.items()}
    assert {key: shapes[key] for key in ("wide", "deep", "only_buy", "click.query", "buy.query")} == {
        "wide": (2, 8),
        "deep": (2, 67),
        "only_buy": (2, 17),
        "click.query": (2, 25),
        "buy.query": (2, 17),
    }
    for name, twin in (("nested_click", "click"), ("nested_buy", "buy"), ("only_buy", "buy")):
        for part in ("query", "sequence", "sequence_length"):
            assert torch.equal(found[f"{name}.{part}"], found[f"{twin}.{part}"])
    assert not unequal["deep"][1, 25:50].any()  # a row without clicks


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["sum", "mean"])
def test_a_deep_group_of_sequences_only(make: Any, kind: str, form: str) -> None:
    """No other group has features of these rows: it works by itself, several encoders on one sequence group too."""
    encoders = (PoolingEncoderConfig(pooling_type=kind), SimpleAttentionConfig(), PoolingEncoderConfig())
    groups = [make.group("only_buy", sequence_groups=(nested("", *BUY),), sequence_encoders=encoders)]
    rows = sequence_rows((3, 1), (2, 0))
    asked = system(make, features(), groups, rows, form)
    assert asked.group.group_dims("only_buy") == [17, 17, 17]
    assert asked.check(rows)["only_buy"].shape == (2, 51)
