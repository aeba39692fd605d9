"""Replays what the reference recorded: same weights and inputs in, outputs, gradients and id maps out."""

import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from emberline.train import load_config
from emberline.train.data import Batch
from emberline.train.embedding import EmbeddingGroup
from emberline.train.features import create_features
from emberline.train.interop import load_torcheasyrec_state
from emberline.train.zch import zch_modules

CASES = ["deep_ids", "raw_boundaries", "raw_dense_embedding", "raw_passthrough", "wide_and_deep", "zch_lfu", "zch_lru"]
WITH_GRADIENTS = ["deep_ids", "raw_boundaries", "raw_dense_embedding", "raw_passthrough", "wide_and_deep"]
ZCH = ["zch_lfu", "zch_lru"]
TOLERANCE = 1e-5


@dataclass
class Recorded:
    """One folder of recorded numbers, and our group with its weights."""

    folder: Path
    meta: dict[str, Any]
    group: EmbeddingGroup

    def arrays(self, name: str) -> dict[str, np.ndarray[Any, Any]]:
        with np.load(self.folder / f"{name}.npz") as file:
            return dict(file)

    def batch(self, name: str) -> Batch:
        """The recorded inputs of one batch."""
        inputs = {key.removeprefix(f"{name}/"): value for key, value in self.arrays("inputs").items() if key.startswith(f"{name}/")}
        keys = self.meta["input_keys"][name]
        sparse = {data_group: _jagged(inputs, f"sparse/{data_group}", names) for data_group, names in keys["sparse"].items() if names}
        dense = {data_group: _keyed(inputs, f"dense/{data_group}", list(names)) for data_group, names in keys["dense"].items() if names}
        return Batch(sparse_features=sparse, dense_features=dense)


def _jagged(inputs: dict[str, np.ndarray[Any, Any]], where: str, names: list[str]) -> KeyedJaggedTensor:
    def parts(kind: str) -> list[Tensor]:
        return [torch.from_numpy(inputs[f"{where}/{name}/{kind}"]) for name in names]

    weighted = [name for name in names if f"{where}/{name}/weights" in inputs]
    assert weighted in ([], names)
    weights = torch.cat(parts("weights")) if weighted else None
    return KeyedJaggedTensor(keys=names, values=torch.cat(parts("values")), lengths=torch.cat(parts("lengths")), weights=weights)


def _keyed(inputs: dict[str, np.ndarray[Any, Any]], where: str, names: list[str]) -> KeyedTensor:
    parts = [torch.from_numpy(inputs[f"{where}/{name}"]) for name in names]
    return KeyedTensor(keys=names, length_per_key=[part.shape[1] for part in parts], values=torch.cat(parts, dim=1))


@pytest.fixture
def recorded(golden_root: Path, request: pytest.FixtureRequest) -> Recorded:
    folder = golden_root / request.param
    meta = json.loads((folder / "meta.json").read_text())
    config = load_config(folder / "config.pbtxt")
    features = create_features(config.feature_configs, neg_fields=meta["neg_fields"] or ())
    group = EmbeddingGroup(features, config.feature_groups, **meta["embedding_group_kwargs"])
    result = Recorded(folder, meta, group)
    load_torcheasyrec_state(group, result.arrays("weights"))
    return result


@pytest.mark.parametrize("recorded", CASES, indirect=True)
def test_outputs(recorded: Recorded) -> None:
    expected = recorded.arrays("outputs")
    for batch in recorded.meta["batches"]:
        found = recorded.group.train(batch["mode"] == "train")(recorded.batch(batch["name"]))
        assert sorted(found) == sorted(batch["output_keys"])
        for key, tensor in found.items():
            assert np.abs(tensor.detach().numpy() - expected[f"{batch['name']}/{key}"]).max(initial=0) <= TOLERANCE


@pytest.mark.parametrize("recorded", [*CASES, "weighted_ids"], indirect=True)
def test_accessors(recorded: Recorded) -> None:
    group, meta = recorded.group, recorded.meta
    assert group.group_names() == meta["group_names"]
    assert group.grouped_features_keys() == meta["grouped_features_keys"]
    for name in meta["group_names"]:
        assert group.has_group(name)
        assert group.group_type(name) == meta["group_type"][name]
        assert group.group_dims(name) == meta["group_dims"][name]
        assert group.group_total_dim(name) == meta["group_total_dim"][name]
        assert list(group.group_feature_dims(name).items()) == list(meta["group_feature_dims"][name].items())


@pytest.mark.parametrize("recorded", WITH_GRADIENTS, indirect=True)
def test_gradients(recorded: Recorded) -> None:
    grads = recorded.arrays("grads")
    for batch in recorded.meta["batches"]:
        recorded.group.zero_grad()
        result = recorded.group.train(batch["mode"] == "train")(recorded.batch(batch["name"]))
        cotangents = {key: torch.from_numpy(grads[f"{batch['name']}/cotangent/{key}"]) for key in result}
        sum((result[key] * cotangents[key]).sum() for key in result).backward()
        expected = {key.split("/grad/")[1]: value for key, value in grads.items() if key.startswith(f"{batch['name']}/grad/")}
        assert expected
        names = list(recorded.arrays("weights"))
        for name, gradient in expected.items():
            found = _gradient(recorded.group, name, names).numpy()
            assert np.abs(found.reshape(gradient.shape) - gradient).max(initial=0) <= TOLERANCE, name


def _gradient(group: EmbeddingGroup, name: str, weights: list[str]) -> Tensor:
    """Our gradient for one of the reference's parameters, which stack the dense embeddings of all features of equal settings."""
    if "embedding_bags" in name:
        gradients = [group.pooled.table_weights()[name.split(".")[-2]].grad]
    else:
        stacked = sorted(weight.removesuffix(".weight").rsplit(".", 1)[1] for weight in weights if weight.startswith(f"{name}_"))
        parameters = {ours.split(".")[-1]: parameter for ours, parameter in group.named_parameters()}
        gradients = [parameters[part].grad for part in stacked]
    return torch.stack([gradient for gradient in gradients if gradient is not None])


@pytest.mark.parametrize("recorded", ["weighted_ids"], indirect=True)
def test_weighted_sums_equal_the_sharded_reference_and_means_divide_by_the_weights(recorded: Recorded) -> None:
    """The recorded mean divides by the count of ids; ours by their weights, so it is recomputed from the recorded weights."""
    batch = recorded.batch("b0")
    found = recorded.group(batch)["deep"].detach().numpy()
    sharded = recorded.arrays("outputs_sharded")["b0/deep"]
    assert np.abs(found[:, :12] - sharded[:, :12]).max() <= TOLERANCE
    bags = batch.sparse_features["__BASE__"]["wmean"]
    table = recorded.arrays("weights")["emb_impls.__BASE__.ebc.embedding_bags.wmean_emb.weight"].astype(np.float64)
    offsets = bags.offsets().tolist()
    for row, (begin, end) in enumerate(itertools.pairwise(offsets)):
        weights, ids = bags.weights()[begin:end].numpy().astype(np.float64), bags.values()[begin:end].numpy()
        mean = weights @ table[ids] / weights.sum() if end > begin and weights.sum() != 0 else np.zeros(4)
        assert np.abs(found[row, 12:] - mean).max() <= TOLERANCE


@pytest.mark.parametrize("recorded", ZCH, indirect=True)
def test_id_maps_step_by_step(recorded: Recorded) -> None:
    steps = recorded.arrays("mc")
    maps = zch_modules(recorded.group)
    compared = 0
    for batch in recorded.meta["batches"]:
        recorded.group.train(batch["mode"] == "train")
        inputs = {table: steps[f"{batch['name']}/remap/{_path(steps, table)}/in"] for table in maps}
        recorded.group(recorded.batch(batch["name"]))
        for table, module in maps.items():
            where = f"{batch['name']}/after/{_path(steps, table)}"
            for key, value in steps.items():
                if key.startswith(f"{where}/_mch"):
                    assert np.array_equal(module.get_buffer(key.rsplit("/", 1)[1]).numpy(), value), key
                    compared += 1
            assert int(module._current_iter_tensor) == int(steps[f"{where}/_current_iter_tensor"][0])
            if f"{where}/history_accumulator" in steps:
                offset = int(steps[f"{where}/history_offset"])
                history = module.state_for_checkpoint()["history_ids"].numpy()
                assert np.array_equal(history, steps[f"{where}/history_accumulator"][:offset])
            rows = steps[f"{batch['name']}/remap/{_path(steps, table)}/out"]
            assert np.array_equal(module.rows_of(torch.from_numpy(inputs[table])).numpy(), rows)
    assert compared == len(recorded.meta["batches"]) * len(maps) * 3


def _path(steps: dict[str, Any], table: str) -> str:
    return next(key.split("/")[2] for key in steps if key.endswith(f"_managed_collision_modules.{table}/in"))


@pytest.mark.parametrize("recorded", ZCH, indirect=True)
def test_state_after_the_last_batch(recorded: Recorded) -> None:
    for batch in recorded.meta["batches"]:
        recorded.group.train(batch["mode"] == "train")(recorded.batch(batch["name"]))
    weights = recorded.group.pooled.table_weights()
    for name, value in recorded.arrays("weights_after").items():
        if name.endswith(".weight"):
            assert np.array_equal(weights[name.split(".")[-2]].detach().numpy(), value)
