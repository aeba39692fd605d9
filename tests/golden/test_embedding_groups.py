"""Replays what the reference recorded: same weights and inputs in, outputs, gradients and id maps out."""

import itertools
import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor, KeyedTensor

from emberline.train import load_config
from emberline.train.data import Batch, Tile, untile_batch
from emberline.train.data.tile import is_user_side
from emberline.train.embedding import EmbeddingGroup
from emberline.train.encoders import torcheasyrec_names
from emberline.train.features import create_features
from emberline.train.interop import load_torcheasyrec_state
from emberline.train.zch import zch_modules

POOLED = ["deep_ids", "raw_boundaries", "raw_dense_embedding", "raw_passthrough", "wide_and_deep"]
SEQUENCES = ["enc_din", "enc_pool_simple_attention", "enc_self_attention", "seq_basic", "seq_jagged", "seq_multival", "two_data_groups"]
WITH_GRADIENTS = [*POOLED, *SEQUENCES]
ZCH = ["zch_lfu", "zch_lru"]
CASES = [*WITH_GRADIENTS, *ZCH]
TILED = "tile2_user_item"
SHORTENED = "enc_self_attention"
"""Here columns 12 to 17 are right and not as recorded: with `max_seq_length` 2 the reference divides the sum of the steps that count by the number
of all steps, where we divide by the number of those that count. `factors` is the quotient of the two."""
SIZES = ("key_lengths", "seq_lengths")
"""Under these names the ids of each step and the steps of each row are recorded."""
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
        steps = {name: _steps(inputs, f"seq_dense/{name}") for name in keys["seq_dense"]}
        sizes = {group: _jagged(inputs, f"seq_mulval/{group}", names, SIZES) for group, names in keys["seq_mulval"].items() if names}
        return Batch(sparse_features=sparse, dense_features=dense, sequence_dense_features=steps, sequence_mulval_lengths=sizes)


def _steps(inputs: dict[str, np.ndarray[Any, Any]], where: str) -> JaggedTensor:
    return JaggedTensor(values=torch.from_numpy(inputs[f"{where}/values"]), lengths=torch.from_numpy(inputs[f"{where}/lengths"]))


def _jagged(
    inputs: dict[str, np.ndarray[Any, Any]], where: str, names: list[str], kinds: tuple[str, str] = ("values", "lengths")
) -> KeyedJaggedTensor:
    def parts(kind: str) -> list[Tensor]:
        return [torch.from_numpy(inputs[f"{where}/{name}/{kind}"]) for name in names]

    weighted = [name for name in names if f"{where}/{name}/weights" in inputs]
    assert weighted in ([], names)
    weights = torch.cat(parts("weights")) if weighted else None
    values, lengths = (torch.cat(parts(kind)) for kind in kinds)
    return KeyedJaggedTensor(keys=names, values=values, lengths=lengths, weights=weights)


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
            theirs = tensor.detach() * factors(recorded, batch["name"]) if key == "deep" and recorded.folder.name == SHORTENED else tensor.detach()
            assert np.abs(theirs.numpy() - expected[f"{batch['name']}/{key}"]).max(initial=0) <= TOLERANCE, key


def factors(recorded: Recorded, batch: str) -> Tensor:
    """[B, 18]: what makes our answers those of the reference."""
    lengths = recorded.batch(batch).sparse_features["__BASE__"]["buy__item_id"].lengths()
    assert (lengths > 2).any()
    result = torch.ones(lengths.numel(), 18)
    result[:, 12:] = (lengths.clamp(1, 2) / lengths.clamp(1))[:, None]
    return result


@pytest.mark.parametrize("recorded", [*CASES, "weighted_ids", TILED], indirect=True)
def test_accessors(recorded: Recorded) -> None:
    group, meta = recorded.group, recorded.meta
    assert group.group_names() == meta["group_names"]
    assert group.grouped_features_keys() == meta["grouped_features_keys"]
    for name in meta["group_names"]:
        assert group.has_group(name)
        assert group.group_type(name) == meta["group_type"][name]
        assert group.group_dims(name) == meta["group_dims"][name]
        assert group.group_total_dim(name) == meta["group_total_dim"][name]
        if name in meta["group_feature_dims"]:  # the reference refuses to answer for sequence groups
            assert list(group.group_feature_dims(name).items()) == list(meta["group_feature_dims"][name].items())
    for part in meta["group_dims"]:
        assert group.group_dims(part) == meta["group_dims"][part]
        assert group.group_total_dim(part) == meta["group_total_dim"][part]


@pytest.mark.parametrize("recorded", WITH_GRADIENTS, indirect=True)
def test_gradients(recorded: Recorded) -> None:
    grads = recorded.arrays("grads")
    for batch in recorded.meta["batches"]:
        recorded.group.zero_grad()
        result = recorded.group.train(batch["mode"] == "train")(recorded.batch(batch["name"]))
        cotangents = {key: torch.from_numpy(grads[f"{batch['name']}/cotangent/{key}"]) for key in result if not key.endswith("_length")}
        if recorded.folder.name == SHORTENED:
            cotangents["deep"] = cotangents["deep"] * factors(recorded, batch["name"])
        sum((result[key] * cotangent).sum() for key, cotangent in cotangents.items()).backward()
        found = _gradients(recorded.group, list(recorded.arrays("weights")))
        assert all(torch.isfinite(gradient).all() for gradient in found.values())
        expected: dict[str, Any] = {}
        for key, value in grads.items():
            if key.startswith(f"{batch['name']}/grad/"):
                name = _one_table(key.split("/grad/")[1])
                expected[name] = expected.get(name, 0) + value  # copies of one table are one table here
        assert expected.keys() <= found.keys()
        for name, gradient in expected.items():
            if recorded.folder.name == SHORTENED and np.isnan(gradient).any():
                continue  # the reference's gradients where a row has padding
            assert np.abs(found[name].numpy().reshape(gradient.shape) - gradient).max(initial=0) <= TOLERANCE, name
        compared = sum(not np.isnan(gradient).any() for gradient in expected.values())
        assert compared > 0


def _one_table(name: str) -> str:
    return f"table {name.split('.')[-2]}" if re.search(r"\.(embedding_bags|embeddings)\.", name) else name


def _gradients(group: EmbeddingGroup, weights: list[str]) -> dict[str, Tensor]:
    """Our gradients by the reference's names, which stack the dense embeddings of all features of equal settings."""
    found = {f"table {name}": weight.grad for name, weight in group.table_weights().items()}
    for name, encoders in group.encoders_by_group().items():
        for number, encoder in enumerate(encoders):
            parameters = dict(encoder.named_parameters())
            prefix = f"_group_name_to_seq_encoders.{name}.{number}."
            found |= {f"{prefix}{theirs}": parameters[ours].grad for theirs, ours in torcheasyrec_names(encoder).items() if ours in parameters}
    parameters = {ours.split(".")[-1]: parameter for ours, parameter in group.named_parameters()}
    stacks: dict[str, list[Tensor | None]] = {}
    for weight in sorted(weight.removesuffix(".weight") for weight in weights if ".dense_ec." in weight):
        module, part = weight.rsplit(".", 1)
        kind = next(kind for kind in ("meta_emb", "proj_w", "proj_m") if part.startswith(kind))
        stacks.setdefault(f"{module}.{kind}", []).append(parameters[part].grad)
    found |= {name: torch.stack([gradient for gradient in gradients if gradient is not None]) for name, gradients in stacks.items()}
    return {name: gradient for name, gradient in found.items() if gradient is not None}


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
    maps: dict[str, Any] = dict(zch_modules(recorded.group))
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


@pytest.mark.parametrize("recorded", [TILED], indirect=True)
def test_users_once_and_their_rows_beside_them(recorded: Recorded) -> None:
    """The request before the reference tiled it: its own Batch repeats the user's ids, and its forward can only run once."""
    (batch,) = recorded.meta["batches"]
    parsed = {key.removeprefix("b0/parsed/"): torch.from_numpy(value) for key, value in recorded.arrays("inputs").items() if "/parsed/" in key}
    is_user = recorded.meta["is_user_feat"]
    assert {name: is_user_side(feature) for name, feature in recorded.group.registry.features.items()} == is_user
    user = _parsed([name for name in is_user if is_user[name]], parsed)
    item = _parsed([name for name in is_user if not is_user[name]], parsed)
    tiled = replace(item, tile=Tile(user, torch.zeros(int(parsed["batch_size"]), dtype=torch.int64)))
    expected, group = recorded.arrays("outputs"), recorded.group.eval()
    for found in (group(tiled), group(tiled), group.assemble_tiled(group.tiled_lookup(tiled)), group(untile_batch(tiled))):
        assert sorted(found) == sorted(batch["output_keys"])
        for key, tensor in found.items():
            theirs = expected[f"b0/{key}"]
            assert tensor.shape == theirs.shape
            assert np.abs(tensor.detach().numpy() - theirs).max() <= TOLERANCE, key


def _parsed(names: list[str], values: dict[str, Tensor]) -> Batch:
    """One side of a request, by the names of the reference's parser."""
    numbers = [name for name in names if f"{name}.values" in values and f"{name}.lengths" not in values]
    steps = {name: _steps_of(name, values) for name in names if f"{name}.lengths" in values and values[f"{name}.values"].is_floating_point()}
    ids = [name for name in names if name not in (*numbers, *steps)]
    sizes = [name for name in ids if f"{name}.key_lengths" in values]
    multi = {name: _steps_of(name, values).lengths() for name in sizes}
    rows = {name: _sums(values[f"{name}.key_lengths"], multi[name]) if name in sizes else values[f"{name}.lengths"] for name in ids}
    kjt = KeyedJaggedTensor(keys=ids, values=torch.cat([values[f"{name}.values"] for name in ids]), lengths=torch.cat([rows[name] for name in ids]))
    columns = [values[f"{name}.values"] for name in numbers]
    dense = KeyedTensor(keys=numbers, length_per_key=[column.shape[1] for column in columns], values=torch.cat(columns, dim=1))
    mulval = (
        KeyedJaggedTensor(keys=sizes, values=torch.cat([values[f"{name}.key_lengths"] for name in sizes]), lengths=torch.cat(list(multi.values())))
        if sizes
        else None
    )
    return Batch(
        sparse_features={"__BASE__": kjt},
        dense_features={"__BASE__": dense},
        sequence_dense_features=steps,
        sequence_mulval_lengths={"__BASE__": mulval} if mulval is not None else {},
    )


def _steps_of(name: str, values: dict[str, Tensor]) -> JaggedTensor:
    return JaggedTensor(values=values[f"{name}.values"], lengths=values[f"{name}.lengths"])


def _sums(sizes: Tensor, lengths: Tensor) -> Tensor:
    """Ids of each row, given ids of each step and steps of each row."""
    return torch.stack([part.sum() for part in torch.split(sizes, lengths.tolist())]).to(torch.int32)


def _path(steps: dict[str, Any], table: str) -> str:
    return next(key.split("/")[2] for key in steps if key.endswith(f"_managed_collision_modules.{table}/in"))


@pytest.mark.parametrize("recorded", ZCH, indirect=True)
def test_state_after_the_last_batch(recorded: Recorded) -> None:
    for batch in recorded.meta["batches"]:
        recorded.group.train(batch["mode"] == "train")(recorded.batch(batch["name"]))
    weights = recorded.group.table_weights()
    for name, value in recorded.arrays("weights_after").items():
        if name.endswith(".weight"):
            assert np.array_equal(weights[name.split(".")[-2]].detach().numpy(), value)
