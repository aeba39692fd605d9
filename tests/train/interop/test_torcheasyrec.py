from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from emberline.errors import CheckpointError
from emberline.schema import BucketEncoder, FeatureKind, FeatureSpec, GroupKind, NumericEncoder, RawIdEncoder
from emberline.train.config.group_configs import FeatureGroupConfig, SequenceGroupConfig
from emberline.train.config.model_config import MlpConfig
from emberline.train.embedding import EmbeddingGroup
from emberline.train.encoders import DinEncoderConfig
from emberline.train.features import AutoDisConfig, Feature, LruPolicy, MlpEmbeddingConfig, ZchConfig
from emberline.train.interop import load_torcheasyrec_state
from emberline.train.zch import FREE_ROW, zch_modules

BASE = "emb_impls.__BASE__"
MAP = f"{BASE}.mc_ebc._managed_collision_collection._managed_collision_modules.z_emb"
State = dict[str, Any]


def sparse(name: str, rows: int, zch: ZchConfig | None = None, data_group: str = "__BASE__") -> Feature:
    encoder = RawIdEncoder() if zch is not None else BucketEncoder(rows=rows)
    spec = FeatureSpec(name=name, kind=FeatureKind.SPARSE, columns=(name,), encoder=encoder)
    return Feature(name=name, spec=spec, embedding_dim=2, embedding_name=f"{name[0]}_emb", rows=rows, zch=zch, data_group=data_group)


def dense(name: str, embedding: AutoDisConfig | MlpEmbeddingConfig, value_dim: int = 1) -> Feature:
    spec = FeatureSpec(name=name, kind=FeatureKind.DENSE, columns=(name,), encoder=NumericEncoder(), value_dim=value_dim)
    return Feature(name=name, spec=spec, embedding_dim=2, dense_embedding=embedding)


def build() -> EmbeddingGroup:
    zch = ZchConfig(zch_size=4, eviction_interval=2, eviction_policy=LruPolicy())
    features = [
        sparse("a", 3),
        sparse("a2", 3, data_group="__NEG__"),
        sparse("z", 4, zch),
        dense("x", AutoDisConfig(num_channels=3)),
        dense("m", MlpEmbeddingConfig()),
        dense("v", MlpEmbeddingConfig(), 3),
    ]
    names = ("a", "z", "x", "m", "v")
    return EmbeddingGroup(
        features, [FeatureGroupConfig(group_name="g", feature_names=names), FeatureGroupConfig(group_name="n", feature_names=("a2",))]
    )


def numbers(*shape: int, start: float = 0) -> np.ndarray[Any, Any]:
    return (np.arange(np.prod(shape), dtype=np.float32) + start).reshape(shape)


def state() -> State:
    """By the reference's names: the table `a_emb` lies in two data groups, and the spaces in one name are its own."""
    return {
        f"{BASE}.ebc.embedding_bags.a_emb.weight": numbers(3, 2),
        "emb_impls.__NEG__.ebc.embedding_bags.a_emb.weight": numbers(3, 2),
        f"{BASE}.mc_ebc._embedding_module.embedding_bags.z_emb.weight": torch.from_numpy(numbers(4, 2, start=50)),
        f"{MAP}._mch_sorted_raw_ids": np.array([7, 9, FREE_ROW, FREE_ROW]),
        f"{MAP}._mch_remapped_ids_mapping": np.array([2, 0, 1, 3]),
        f"{MAP}._mch_last_access_iter": np.array([3, 4, 0, 4]),
        f"{MAP}._output_segments_tensor": np.array([0, 4] + [-1] * 1023),
        f"{MAP}._current_iter_tensor": np.array([4]),
        f"{BASE}.dense_ec.dense_embs.autodis#2#3#0_800000#0_100000.meta_emb_x.weight": numbers(3, 2),
        f"{BASE}.dense_ec.dense_embs.autodis#2#3#0_800000#0_100000.proj_w_x.weight": numbers(3),
        f"{BASE}.dense_ec.dense_embs.autodis#2#3#0_800000#0_100000.proj_m_x.weight": numbers(3, 3),
        f"{BASE}.dense_ec.dense_embs.mlp#2.proj_w_m.weight": numbers(2, start=20),
        f"{BASE}.dense_ec.dense_embs.mlp#2#vdim#3#feature_name#            v.proj_w_v.weight": numbers(3, 2, start=30),
    }


def test_every_part_gets_its_values() -> None:
    group = build()
    load_torcheasyrec_state(group, state())
    weights = group.pooled.table_weights()
    assert np.array_equal(weights["a_emb"].detach(), numbers(3, 2))
    assert np.array_equal(weights["z_emb"].detach(), numbers(4, 2, start=50))
    parameters = {name.split(".")[-1]: parameter.detach().numpy() for name, parameter in group.named_parameters()}
    assert np.array_equal(parameters["meta_emb_x"], numbers(3, 2))
    assert np.array_equal(parameters["proj_w_x"], numbers(3))
    assert np.array_equal(parameters["proj_m_x"], numbers(3, 3))
    assert np.array_equal(parameters["proj_w_m"], numbers(1, 2, start=20))
    assert np.array_equal(parameters["proj_w_v"], numbers(3, 2, start=30))
    zch = zch_modules(group)["z_emb"]
    assert zch.rows_of(torch.tensor([7, 9, 8, FREE_ROW])).tolist() == [2, 0, 3, 3]
    restored = zch.state_for_checkpoint()
    assert (restored["iteration"].item(), restored["last_eviction_iteration"].item()) == (4, 4)
    assert restored["last_access_iter"].tolist() == [3, 4, 0, 4]


def test_a_map_of_several_ranks_is_read_as_one() -> None:
    group = build()
    load_torcheasyrec_state(
        group,
        state()
        | {
            f"{MAP}._mch_sorted_raw_ids": np.array([70, FREE_ROW, 5, FREE_ROW]),
            f"{MAP}._mch_remapped_ids_mapping": np.array([0, 1, 2, 3]),
            f"{MAP}._output_segments_tensor": np.array([0, 2, 4] + [-1] * 1022),
        },
    )
    assert zch_modules(group)["z_emb"].rows_of(torch.tensor([5, 70, 6])).tolist() == [2, 0, 3]


def test_copies_of_user_side_and_sequences_are_one_table() -> None:
    copies = [
        f"{BASE}.ebc_user.embedding_bags.a_emb.weight",
        "seq_emb_impls.__BASE__.ec_dict.2.embeddings.a_emb.weight",
        "seq_emb_impls.__BASE__.ec_dict_user.2.embeddings.a_emb.weight",
        "seq_emb_impls.__BASE__.mc_ec_dict.2._embedding_module.embeddings.a_emb.weight",
    ]
    load_torcheasyrec_state(build(), state() | {name: numbers(3, 2) for name in copies})
    for name in copies:
        with pytest.raises(CheckpointError, match=r"a_emb\.weight: disagrees with emb_impls\.__BASE__\.ebc\.embedding_bags\.a_emb\.weight"):
            load_torcheasyrec_state(build(), state() | {name: numbers(3, 2, start=1)})


def test_everything_wrong_comes_in_one_error_and_nothing_is_loaded() -> None:
    group = build()
    before = {name: value.clone() for name, value in group.state_dict().items()}
    wrong = state()
    wrong["emb_impls.__NEG__.ebc.embedding_bags.a_emb.weight"] = numbers(3, 2, start=9)
    wrong[f"{BASE}.ebc.embedding_bags.other_emb.weight"] = numbers(3, 2)
    wrong["dense.0.weight"] = numbers(1)
    wrong[f"{BASE}.mc_ebc._embedding_module.embedding_bags.z_emb.weight"] = numbers(5, 2)
    del wrong[f"{MAP}._mch_last_access_iter"]
    wrong[f"{MAP}._mch_counts"] = np.zeros(4, dtype=np.int64)
    with pytest.raises(CheckpointError) as caught:
        load_torcheasyrec_state(group, wrong)
    lines = [line.strip() for line in str(caught.value).splitlines()[1:]]
    assert lines == [
        f"{BASE}.mc_ebc._embedding_module.embedding_bags.z_emb.weight: has shape [5, 2], the model needs [4, 2]",
        f"{BASE}.ebc.embedding_bags.other_emb.weight: surplus, the model has nothing of that name",
        "dense.0.weight: surplus, the model has nothing of that name",
        f"{MAP}._mch_counts: surplus, the model has nothing of that name",
        "id_maps.z_emb._mch_last_access_iter: missing",
        "emb_impls.__NEG__.ebc.embedding_bags.a_emb.weight: disagrees with emb_impls.__BASE__.ebc.embedding_bags.a_emb.weight, "
        "another copy of the same; keep one of them",
    ]
    assert all(torch.equal(before[name], value) for name, value in group.state_dict().items())


def test_each_buffer_of_an_id_map_is_needed_but_those_that_follow_from_others() -> None:
    needed = ["_mch_sorted_raw_ids", "_mch_remapped_ids_mapping", "_mch_last_access_iter", "_current_iter_tensor"]
    assert sorted(name for name in state() if name.startswith(f"{MAP}.")) == sorted(f"{MAP}.{name}" for name in [*needed, "_output_segments_tensor"])
    for name in needed:
        given = state()
        del given[f"{MAP}.{name}"]
        with pytest.raises(CheckpointError, match=rf"\n +id_maps\.z_emb\.{name}: missing$"):
            load_torcheasyrec_state(build(), given)
    given, whole, part = state(), build(), build()
    load_torcheasyrec_state(whole, given)
    del given[f"{MAP}._output_segments_tensor"]
    load_torcheasyrec_state(part, given)
    assert all(torch.equal(value, part.state_dict()[name]) for name, value in whole.state_dict().items())


def test_an_empty_state_names_all_that_is_missing() -> None:
    with pytest.raises(CheckpointError) as caught:
        load_torcheasyrec_state(build(), {})
    assert str(caught.value).count(": missing") == 11


def sequences() -> EmbeddingGroup:
    """A table read pooled, in a query and step by step; a ZCH table read step by step; an encoder."""
    zch = ZchConfig(zch_size=4, eviction_interval=2, eviction_policy=LruPolicy())
    steps = [sparse("a_seq", 3), sparse("z_seq", 4, zch)]
    steps = [replace(feature, spec=replace(feature.spec, sequence=True, value_dim=1)) for feature in steps]
    features = [sparse("a", 3), *steps]
    nested = SequenceGroupConfig(group_name="s", feature_names=("a", "a_seq", "z_seq"))
    din = DinEncoderConfig(attn_mlp=MlpConfig(hidden_units=(3,)))
    groups = [
        FeatureGroupConfig(group_name="g", feature_names=("a",), sequence_groups=(nested,), sequence_encoders=(din,)),
        FeatureGroupConfig(group_name="j", feature_names=("z_seq",), group_type=GroupKind.JAGGED_SEQUENCE),
    ]
    return EmbeddingGroup(features, groups)


SEQUENCES = "seq_emb_impls.__BASE__"
SEQUENCE_MAP = f"{SEQUENCES}.mc_ec_dict.2._managed_collision_collection._managed_collision_modules.z_emb"
ENCODER = "_group_name_to_seq_encoders.g.0"


def sequence_state() -> State:
    return {
        f"{BASE}.ebc.embedding_bags.a_emb.weight": numbers(3, 2),
        f"{SEQUENCES}.ec_dict.2.embeddings.a_emb.weight": numbers(3, 2),
        f"{SEQUENCES}.mc_ec_dict.2._embedding_module.embeddings.z_emb.weight": numbers(4, 2, start=50),
        f"{SEQUENCE_MAP}._mch_sorted_raw_ids": np.array([7, 9, FREE_ROW, FREE_ROW]),
        f"{SEQUENCE_MAP}._mch_remapped_ids_mapping": np.array([2, 0, 1, 3]),
        f"{SEQUENCE_MAP}._mch_last_access_iter": np.array([3, 4, 0, 4]),
        f"{SEQUENCE_MAP}._output_segments_tensor": np.array([0, 4] + [-1] * 1023),
        f"{SEQUENCE_MAP}._current_iter_tensor": np.array([4]),
        f"{ENCODER}.mlp.mlp.0.perceptron.0.weight": numbers(3, 16),
        f"{ENCODER}.mlp.mlp.0.perceptron.0.bias": numbers(3, start=5),
        f"{ENCODER}.linear.weight": numbers(1, 3, start=9),
        f"{ENCODER}.linear.bias": numbers(1, start=7),
    }


def test_sequences_and_encoders_get_their_values() -> None:
    group = sequences()
    load_torcheasyrec_state(group, sequence_state())
    weights = group.table_weights()
    assert list(weights) == ["a_emb", "z_emb"]
    assert torch.equal(weights["a_emb"], torch.from_numpy(numbers(3, 2)))
    assert torch.equal(weights["z_emb"], torch.from_numpy(numbers(4, 2, start=50)))
    assert zch_modules(group)["z_emb"].rows_of(torch.tensor([9, 7, 8])).tolist() == [0, 2, 3]
    (encoder,) = group.encoders_by_group()["g"]
    values = sorted(parameter.flatten()[0].item() for parameter in encoder.parameters())
    assert values == [0, 5, 7, 9]


def test_wrong_sequences_and_encoders_are_named() -> None:
    wrong = sequence_state()
    wrong[f"{SEQUENCES}.ec_dict.2.embeddings.a_emb.weight"] += 1
    wrong[f"{ENCODER}.linear.weight"] = numbers(1, 4)
    del wrong[f"{ENCODER}.linear.bias"]
    wrong["_group_name_to_seq_encoders.g.1.linear.bias"] = numbers(1)
    with pytest.raises(CheckpointError) as caught:
        load_torcheasyrec_state(sequences(), wrong)
    assert [line.strip() for line in str(caught.value).splitlines()[1:]] == [
        f"{ENCODER}.linear.weight: has shape [1, 4], the model needs [1, 3]",
        "_group_name_to_seq_encoders.g.1.linear.bias: surplus, the model has nothing of that name",
        "encoders.g.0.linear.bias: missing",
        f"{SEQUENCES}.ec_dict.2.embeddings.a_emb.weight: disagrees with {BASE}.ebc.embedding_bags.a_emb.weight, another copy of the same; "
        "keep one of them",
    ]


def test_another_type_is_refused() -> None:
    wrong = state()
    wrong[f"{BASE}.ebc.embedding_bags.a_emb.weight"] = numbers(3, 2).astype(np.float64)
    with pytest.raises(CheckpointError, match=r"a_emb\.weight: is float64, the model needs float32"):
        load_torcheasyrec_state(build(), wrong)


def test_maps_by_hashes_have_no_place_there() -> None:
    group = EmbeddingGroup([sparse("z", 4, ZchConfig(zch_size=4, kind="mpzch"))], [FeatureGroupConfig(group_name="g", feature_names=("z",))])
    with pytest.raises(CheckpointError, match="table 'z_emb' has zch kind mpzch: only id maps of kind mch can be imported"):
        load_torcheasyrec_state(group, state())
