"""Wide & Deep against its formula in float64."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from emberline.errors import ConfigError
from emberline.train.models import RecModel
from emberline.train.models.wide_and_deep import WideAndDeepHead

ModelOf = Callable[[str], RecModel]
TEXT = """
feature_configs {{ id_feature {{ feature_name: "a" embedding_dim: 4 num_buckets: 5 }} }}
feature_configs {{ raw_feature {{ feature_name: "x" value_dim: 3 }} }}
model_config {{
  feature_groups {{ group_name: "wide" group_type: WIDE feature_names: "a" }}
  feature_groups {{ group_name: "deep" feature_names: "a" feature_names: "x" }}
  {extra} wide_and_deep {{ deep {{ hidden_units: [6, 5] }} {model} }}
}}
"""
FINAL = "final { hidden_units: 4 }"


def groups(rows: int) -> dict[str, torch.Tensor]:
    return {"wide": torch.randn(rows, 4), "deep": torch.randn(rows, 7)}


@pytest.mark.parametrize("final", ["", FINAL])
def test_it_is_its_formula(model_of: ModelOf, maths: Any, final: str) -> None:
    head, sample = model_of(TEXT.format(model=final, extra="")).head, groups(6)
    assert isinstance(head, WideAndDeepHead)
    for row, found in enumerate(head(sample)["logits"].tolist()):
        wide, deep = sum(sample["wide"][row].tolist()), maths.mlp(head.deep_mlp, sample["deep"][row].tolist())
        if head.final_mlp is None:
            expected = wide + maths.linear(head.output, deep)[0]
        else:
            expected = maths.linear(head.output, maths.mlp(head.final_mlp, [wide, *deep]))[0]
        assert found == pytest.approx(expected, abs=1e-5)


def test_wide_tables_have_their_own_width_and_start(model_of: ModelOf) -> None:
    model = model_of(TEXT.format(model="wide_embedding_dim: 8 wide_init_fn: 'nn.init.zeros_'", extra=""))
    assert {table.name: table.dim for table in model.schema().tables} == {"a_emb_wide": 8, "a_emb": 4}
    assert not model.embedding_group.table_weights()["a_emb_wide"].any()


@pytest.mark.parametrize("final", ["", FINAL])
def test_it_traces_and_exports(model_of: ModelOf, programs_agree: Any, final: str) -> None:
    programs_agree(model_of(TEXT.format(model=final, extra="")).head, [groups(rows) for rows in (3, 0, 1, 9)])


def test_classes_need_a_final_part(model_of: ModelOf) -> None:
    classes = "num_class: 3 losses { softmax_cross_entropy {} }"
    with pytest.raises(ConfigError, match="wide_and_deep: 3 classes need `final`"):
        model_of(TEXT.format(model="", extra=classes))
    head = model_of(TEXT.format(model=FINAL, extra=classes)).head
    assert head(groups(2))["logits"].shape == (2, 3)


def test_negatives_are_for_models_that_compare(model_of: ModelOf) -> None:
    negatives = 'data_config { negative_columns { num_negatives: 1 columns { key: "a" value: "b" } } }'
    with pytest.raises(ConfigError, match="negative_columns is for dssm: wide_and_deep compares no candidates"):
        model_of(negatives + TEXT.format(model="", extra="").replace(' feature_names: "x"', ""))


def test_groups_must_be_there(model_of: ModelOf) -> None:
    text = TEXT.format(model="", extra="").replace('group_name: "wide"', 'group_name: "broad"')
    with pytest.raises(ConfigError, match="there is no feature group 'wide'; the groups are broad, deep"):
        model_of(text)
