"""Whole checkpoints of the reference, written by PyTorch's own writer, into ours."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from emberline.errors import CheckpointError, ConfigError
from emberline.export.describe import describe, verify
from emberline.export.export import export_model
from emberline.train.checkpoint import load_trained
from emberline.train.checkpoint.store import read_checkpoint
from emberline.train.checkpoint.tensors import read_tensors
from emberline.train.config import PipelineConfig, load_config
from emberline.train.data import Batch
from emberline.train.interop.import_checkpoint import import_torcheasyrec
from emberline.train.interop.name_map import NameMap, read_name_map
from emberline.train.interop.selection import Wishes
from emberline.train.job import run_training
from emberline.train.job_build import open_evaluation_data
from emberline.train.models import RecModel, build_model, features_of
from emberline.train.zch import FREE_ROW, zch_modules
from tests.train.conftest import FEATURES

State = dict[str, Tensor]
SaveOnRanks = Callable[[Path, State, Mapping[str, Mapping[str, Any]]], None]
BASE = "model.embedding_group.emb_impls.__BASE__"
MAP_OF_USER = f"{BASE}.mc_ebc._managed_collision_collection._managed_collision_modules.user_emb"
NAMES = "head.output.*  model.output_mlp.*  # the last layer\n\n# the rest\nhead.*  model.*\n"


def trained_model(config: PipelineConfig) -> tuple[RecModel, Batch]:
    """A model that looks trained, and a batch of its evaluation data."""
    torch.manual_seed(11)
    features = features_of(config)
    model = build_model(config, features)
    reader = open_evaluation_data(config, tuple(features))
    assert reader is not None
    batch = next(iter(reader))
    for _ in range(4):
        model.train()(batch)  # the id map learns, and batch normalisation
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval(), batch


def check_answers(path: Path, model: RecModel, batch: Batch) -> RecModel:
    found = load_trained(path).model
    for one, other in zip(found(batch).values(), model(batch).values(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)
    return found


@dataclass(frozen=True)
class Given:
    """What most tests begin with: a config, a model's state by the reference's names, a writer of checkpoints, and a map for the head."""

    make_config: Callable[..., PipelineConfig]
    state: Callable[[RecModel], State]
    write: Callable[..., Path]
    names: NameMap

    def untrained(self, config: PipelineConfig) -> Path:
        """A checkpoint of a model as it begins."""
        return self.write(self.state(build_model(config, features_of(config))), config.text)


@pytest.fixture
def given(
    make_config: Callable[..., PipelineConfig], reference_state: Callable[[RecModel], State], write_reference: Callable[..., Path], tmp_path: Path
) -> Given:
    path = tmp_path / "names.map"
    path.write_text(NAMES)
    return Given(make_config, reference_state, write_reference, read_name_map(path))


def test_a_whole_model_gives_the_same_answers(given: Given, tmp_path: Path) -> None:
    config = given.make_config()
    model, batch = trained_model(config)
    assert zch_modules(model)["user_emb"].rows_in_use > 10
    folder = given.write(given.state(model), config.text, step=7)
    said: list[str] = []
    path = import_torcheasyrec(folder, tmp_path / "run", wishes=Wishes(map=given.names), tell=said.append)
    assert path == tmp_path / "run" / "step-7"
    found = check_answers(path, model, batch)
    for name, tensor in model.state_dict().items():
        if "_managed_collision" not in name:
            assert torch.equal(found.state_dict()[name], tensor), name
    ours, theirs = zch_modules(found)["user_emb"], zch_modules(model)["user_emb"]
    users = batch.sparse_features["__BASE__"]["user"].values()
    assert torch.equal(ours.rows_of(users), theirs.rows_of(users))
    assert "embedding group at model.embedding_group: 4 tables (0 further copies, equal), 1 id maps, 3 tensors of dense embeddings" in said[1]
    assert "head: 12 tensors, by the map" in said
    assert "moments of all tables begin anew: the checkpoint has no folder optimizer/" in said
    assert said[-2:] == ["not taken over: the state of the dense optimiser", f"writing {tmp_path / 'run'}"]


def test_it_can_be_exported_verified_inspected_and_trained_on(given: Given, tmp_path: Path) -> None:
    config = given.make_config(train="num_steps: 9")
    model, batch = trained_model(config)
    folder = given.write(given.state(model), config.text, step=7)
    run = tmp_path / "run"
    import_torcheasyrec(folder.parent, run, wishes=Wishes(map=given.names))
    assert "all as they were written" in next(verify(run))
    (line,) = (line for line in describe(run) if line.startswith("imported: "))
    assert f"from: TorchEasyRec checkpoint {folder}" in line
    assert export_model(run, tmp_path / "models", "m") == tmp_path / "models" / "m" / "1"
    result = run_training(load_config(folder.parent / "pipeline.config"), run, resume=True)
    assert (result.step, result.checkpoint) == (9, run / "step-9")
    assert not torch.equal(load_trained(run).model(batch)["logits"], model(batch)["logits"])


def test_dynamic_tables_come_along(given: Given, tmp_path: Path) -> None:
    zch = given.make_config()
    state = {name: tensor for name, tensor in given.state(build_model(zch, features_of(zch))).items() if "user_emb" not in name}
    grown = FEATURES.replace("zch { zch_size: 40 eviction_interval: 2 lfu {} }", "dynamicemb { max_capacity: 40 }")
    folder = given.write(state, given.make_config(features=grown).text, step=7)
    (folder / "dynamicemb" / "model.ebc").mkdir(parents=True)
    keys = [np.array([-7, 999996]), np.array([2**62])]
    for rank, own in enumerate(keys):
        vectors = np.outer(own % 50, np.ones(8)).astype(np.float32)
        parts = {"keys": own, "values": vectors, "scores": own * 0 + 5, "opt_values": vectors + 1}
        for part, array in parts.items():
            (folder / "dynamicemb" / "model.ebc" / f"user_emb_emb_{part}.rank_{rank}.world_size_2").write_bytes(array.tobytes())
    said: list[str] = []
    path = import_torcheasyrec(folder, tmp_path / "run", wishes=Wishes(map=given.names), tell=said.append)
    assert "table 'user_emb': 3 ids of 2 ranks, moments too" in said
    stored = read_tensors(path / "tensors", "dynamic/user_emb/")
    assert stored["dynamic/user_emb/keys"].tolist() == [-7, 999996, 2**62]
    assert stored["dynamic/user_emb/weight"][:, 0].tolist() == [43.0, 46.0, 2**62 % 50]
    assert stored["dynamic/user_emb/sum"][:, 0].tolist() == [44.0, 47.0, 2**62 % 50 + 1]
    assert stored["dynamic/user_emb/last_steps"].tolist() == stored["dynamic/user_emb/scores"].tolist() == [5, 5, 5]
    assert run_training(load_config(folder.parent / "pipeline.config"), tmp_path / "run", resume=True).step > 7


def test_shards_of_two_ranks_become_whole(given: Given, on_two_ranks: SaveOnRanks, tmp_path: Path) -> None:
    """A table by rows, one by columns, one on one rank, one on both; an id map cut by rows, 30 on one rank and 10 on the other."""
    config = given.make_config()
    model, _ = trained_model(config)
    state = given.state(model)
    ids = torch.arange(20) * 1_000_003 - 7
    state[f"{MAP_OF_USER}._mch_sorted_raw_ids"] = torch.cat([ids[:15], torch.full((15,), FREE_ROW), ids[15:], torch.full((5,), FREE_ROW)])
    rows = torch.cat([torch.arange(28, 13, -1), torch.arange(14), torch.tensor([29]), torch.tensor([33, 31, 30, 32, 34, 35, 36, 37, 38, 39])])
    state[f"{MAP_OF_USER}._mch_remapped_ids_mapping"] = rows
    counts = torch.arange(1, 41)
    counts[[29, 39]] = FREE_ROW
    state[f"{MAP_OF_USER}._mch_counts"] = counts
    segments = torch.full((1025,), -1)
    segments[:3] = torch.tensor([0, 30, 40])
    state[f"{MAP_OF_USER}._output_segments_tensor"] = segments
    layout: dict[str, dict[str, Any]] = {
        f"{MAP_OF_USER}.{name}": {"rows": [30]} for name in ("_mch_sorted_raw_ids", "_mch_remapped_ids_mapping", "_mch_counts")
    }
    layout[f"{BASE}.mc_ebc._embedding_module.embedding_bags.user_emb.weight"] = {"rows": [30]}
    layout[f"{BASE}.ebc.embedding_bags.item_emb.weight"] = {"rows": [17]}
    layout[f"{BASE}.ebc.embedding_bags.tags_emb.weight"] = {"columns": [4]}
    layout[f"{BASE}.ebc.embedding_bags.hour_emb.weight"] = {"rank": 1}
    folder = tmp_path / "reference" / "model.ckpt-10"
    on_two_ranks(folder / "model", state, layout)
    assert {path.name[:4] for path in (folder / "model").glob("*.distcp")} == {"__0_", "__1_"}
    (folder / "pipeline.config").write_text(config.text)
    said: list[str] = []
    path = import_torcheasyrec(folder, tmp_path / "run", wishes=Wishes(map=given.names), tell=said.append)
    found = load_trained(path).model
    for table, weight in found.embedding_group.table_weights().items():
        assert torch.equal(weight, model.embedding_group.table_weights()[table]), table
    module = zch_modules(found)["user_emb"]
    assert module.rows_of(ids).tolist() == [*range(28, 13, -1), 33, 31, 30, 32, 34]
    assert module.rows_of(torch.tensor([5, FREE_ROW, -(2**63)])).tolist() == [39, 39, 39]
    saved = module.state_for_checkpoint()
    assert saved["counts"].tolist() == [*range(1, 16), *range(31, 36), *[0] * 19, FREE_ROW]
    assert sorted(saved["rows"].tolist()) == list(range(40))
    told = (
        "id map of table user_emb: 20 ids, each with its row; trained on 2 ranks: ids without a row now all read the last rank's fallback row, "
        "39; the other ranks' fallback rows 29 become free"
    )
    assert told in said
    assert told in imported_of(path)["notes"]


def test_without_the_head_the_rest_is_exact(given: Given, tmp_path: Path) -> None:
    config = given.make_config()
    model, batch = trained_model(config)
    folder = given.write(given.state(model), config.text)
    said: list[str] = []
    path = import_torcheasyrec(folder, tmp_path / "run", wishes=Wishes(embeddings_only=True), tell=said.append)
    found = load_trained(path).model
    for name, tensor in found.embedding_group(batch).items():
        assert torch.equal(tensor, model.embedding_group(batch)[name])
    assert not torch.equal(found.head.state_dict()["output.weight"], model.head.state_dict()["output.weight"])
    fresh = "head: STARTS AFRESH, untrained: head.dense_mlp.mlp.0.perceptron.0.weight, head.dense_mlp.mlp.0.perceptron.0.bias, "
    assert any(line.startswith(fresh) for line in said)
    imported = imported_of(path)
    assert len(imported["starts_afresh"]) == 12
    assert "model.output_mlp.weight" in imported["left_out"]


def imported_of(path: Path) -> Mapping[str, Any]:
    imported = read_checkpoint(path).imported
    assert imported is not None
    return imported


def lines_of(error: pytest.ExceptionInfo[CheckpointError]) -> list[str]:
    return [line.strip() for line in str(error.value).splitlines()[1:]]


def test_everything_that_does_not_fit_comes_at_once_and_nothing_is_written(given: Given, tmp_path: Path) -> None:
    config = given.make_config()
    state = given.state(trained_model(config)[0])
    item = f"{BASE}.ebc.embedding_bags.item_emb.weight"
    copy = item.replace("emb_impls.__BASE__.ebc.embedding_bags", "seq_emb_impls.__BASE__.ec_dict.8.embeddings")
    state[copy] = state[item] + 1
    state[f"{BASE}.ebc.embedding_bags.hour_emb.weight"] = state[f"{BASE}.ebc.embedding_bags.hour_emb.weight"].double()
    state[f"{BASE}.ebc.embedding_bags.tags_emb.weight"] = torch.zeros(3, 8)
    state[f"{BASE}.ebc.embedding_bags.old_emb.weight"] = torch.zeros(3, 8)
    state["model.gate.weight"] = torch.zeros(2)
    del state["model.output_mlp.bias"], state[f"{MAP_OF_USER}._mch_counts"]
    folder = given.write(state, config.text)
    with pytest.raises(CheckpointError) as caught:
        import_torcheasyrec(folder, tmp_path / "run", wishes=Wishes(map=given.names))
    found = lines_of(caught)
    assert sorted(found[:-1]) == sorted(
        [
            f"model.output_mlp.bias: the checkpoint has no tensor of that name; {given.names.source} gives it to head.output.bias",
            f"{BASE}.ebc.embedding_bags.hour_emb.weight: is float64, the model needs float32",
            f"{BASE}.ebc.embedding_bags.tags_emb.weight: has shape [3, 8], the model needs [12, 8]",
            f"{BASE}.ebc.embedding_bags.old_emb.weight: surplus, the model has nothing of that name",
            "model.gate.weight: surplus, the model has nothing of that name",
            "id_maps.user_emb._mch_counts: missing",
            f"{copy}: disagrees with {item}, another copy of the same; keep one of them",
        ]
    )
    assert found[-1] == "to go on: name pairs in a file for --map, leave names of theirs out with --skip"
    assert not (tmp_path / "run").exists()
    with pytest.raises(CheckpointError, match="--skip nothing\\*: fits no name"):
        import_torcheasyrec(folder, tmp_path / "run", wishes=Wishes(map=given.names, skip=("nothing*", "model.gate.*")))


def test_without_a_map_the_names_of_the_head_are_listed(given: Given, tmp_path: Path) -> None:
    config = given.make_config()
    folder = given.write(given.state(trained_model(config)[0]), config.text)
    with pytest.raises(CheckpointError) as caught:
        import_torcheasyrec(folder, tmp_path / "run")
    found = lines_of(caught)
    assert sum("surplus" in line for line in found) == sum("missing" in line for line in found) == 12
    assert "head.final_mlp.mlp.0.perceptron.1.running_var: missing" in found
    assert found[-1].endswith("or let the head start afresh with --embeddings-only")


def test_copies_are_skipped_or_become_tables_of_their_own(given: Given, tmp_path: Path) -> None:
    """`hour_emb` gets what the checkpoint calls a copy of another name; the copy of `item_emb` that differs is left out."""
    config = given.make_config()
    model, _ = trained_model(config)
    state = given.state(model)
    item = f"{BASE}.ebc.embedding_bags.item_emb.weight"
    state[item.replace("ebc", "ebc_user")] = state[item] + 1
    state[item.replace("__BASE__", "__NEG__")] = state[item].clone()
    hour = f"{BASE}.ebc.embedding_bags.hour_emb.weight"
    state[hour.replace("hour_emb", "hour_v2")] = state.pop(hour)
    folder = given.write(state, config.text)
    path = tmp_path / "more.map"
    path.write_text(NAMES + f"tables.hour_emb {hour.replace('hour_emb', 'hour_v2')}\n")
    said: list[str] = []
    wishes = Wishes(map=read_name_map(path), skip=("*.ebc_user.*",))
    tables = load_trained(import_torcheasyrec(folder, tmp_path / "run", wishes=wishes, tell=said.append)).model.embedding_group.table_weights()
    for table, weight in model.embedding_group.table_weights().items():
        assert torch.equal(tables[table], weight)
    assert "(1 further copies, equal)" in said[1]
    assert f"left out of the checkpoint: {item.replace('ebc', 'ebc_user')}" in said


def optimizer_state(state: State) -> State:
    """Moments as TorchRec's fused Adagrad keeps them."""
    tables = {name: re.fullmatch(r".*embedding_bags\.(\w+)\.weight", name) for name in state}
    found = {f"state.{name}.{match[1]}.momentum1": torch.rand_like(state[name]) for name, match in tables.items() if match}
    return {**found, "state.model.output_mlp.weight.exp_avg": torch.ones(1)}


def test_moments_of_tables_go_on_where_the_optimiser_is_the_same(given: Given, tmp_path: Path) -> None:
    config = given.make_config()
    state = given.state(trained_model(config)[0])
    moments = optimizer_state(state)
    moments.pop(f"state.{BASE}.ebc.embedding_bags.tags_emb.weight.tags_emb.momentum1")
    folder = given.write(state, config.text, optimizer={**moments, "param_groups": "no tensor"})
    said: list[str] = []
    path = import_torcheasyrec(folder, tmp_path / "run", wishes=Wishes(map=given.names), tell=said.append)
    saved = read_tensors(path / "tensors", "tables/")
    assert torch.equal(saved["tables/item_emb/sum"], moments[f"state.{BASE}.ebc.embedding_bags.item_emb.weight.item_emb.momentum1"])
    user = f"state.{BASE}.mc_ebc._embedding_module.embedding_bags.user_emb.weight.user_emb.momentum1"
    assert torch.equal(saved["tables/user_emb/sum"], moments[user])
    assert saved["tables/item_emb/step"].tolist() == [10]
    assert saved["tables/tags_emb/sum"].eq(0.0).all()
    assert "tables/hour_emb/sum" not in saved  # frozen
    assert "moments of 2 tables taken over (adagrad_optimizer)" in said
    assert "moments of table tags_emb begin anew: the checkpoint has none" in said
    adapted = tmp_path / "adapted.config"
    adapted.write_text(config.text.replace("adagrad_optimizer", "rowwise_adagrad_optimizer"))
    import_torcheasyrec(folder, tmp_path / "other", config=adapted, wishes=Wishes(map=given.names), tell=said.append)
    other = "moments of all tables begin anew: the checkpoint was trained with adagrad_optimizer, not rowwise_adagrad_optimizer"
    assert other in said


def test_moving_averages_begin_as_what_was_read(given: Given, tmp_path: Path) -> None:
    config = given.make_config(train="ema { decay: 0.9 }")
    model, _ = trained_model(config)
    path = import_torcheasyrec(given.write(given.state(model), config.text), tmp_path / "run", wishes=Wishes(map=given.names))
    averages = read_tensors(path / "tensors", "ema/")
    expected = {name: parameter for name, parameter in model.named_parameters() if name.startswith("head.")}
    assert len(expected) == 9
    assert all(torch.equal(averages[f"ema/{name}"], parameter) for name, parameter in expected.items())


def damage_cut(folder: Path) -> str:
    file = next(iter(sorted((folder / "model").glob("*.distcp"))))
    file.write_bytes(file.read_bytes()[:-40])
    return rf"{file.name} is cut off: it has \d+ bytes, the index names \d+"


def damage_lost(folder: Path) -> str:
    file = next(iter(sorted((folder / "model").glob("*.distcp"))))
    file.unlink()
    return rf"{file.name} is missing: every rank's file is needed"


def damage_bytes(folder: Path) -> str:
    file = next(iter(sorted((folder / "model").glob("*.distcp"))))
    file.write_bytes(b"\0" * file.stat().st_size)
    return rf"{file.name}: bytes \d+ to \d+ cannot be read"


def damage_index(folder: Path) -> str:
    index = folder / "model" / ".metadata"
    index.write_bytes(index.read_bytes()[:-30])
    return r"\.metadata cannot be read"


def damage_no_index(folder: Path) -> str:
    (folder / "model" / ".metadata").unlink()
    return r"\.metadata is missing"


def damage_config(folder: Path) -> str:
    (folder.parent / "pipeline.config").unlink()
    return r"no pipeline\.config in it or beside it; name the config with --config"


def damage_dynamic(folder: Path) -> str:
    (folder / "dynamicemb" / "user").mkdir(parents=True)
    (folder / "dynamicemb" / "user" / "user_emb_emb_keys.rank_0.world_size_1").write_bytes(b"")
    return "user_emb: surplus, the model has no dynamic table of that name"


@pytest.mark.parametrize(
    "damage", [damage_cut, damage_lost, damage_bytes, damage_index, damage_no_index, damage_config, damage_dynamic], ids=lambda one: one.__name__
)
def test_a_damaged_checkpoint_is_refused_and_nothing_is_written(damage: Callable[[Path], str], given: Given, tmp_path: Path) -> None:
    config = given.make_config()
    folder = given.untrained(config)
    with pytest.raises(CheckpointError, match=damage(folder)):
        import_torcheasyrec(folder, tmp_path / "run", wishes=Wishes(map=given.names))
    assert not (tmp_path / "run").exists()


def test_code_in_an_index_or_a_shard_is_named_and_not_run(given: Given, tmp_path: Path) -> None:
    config = given.make_config()
    folder = given.untrained(config)
    trap = tmp_path / "trap"
    code = f"cposix\nsystem\n(S'touch {trap}'\ntR.".encode()
    index = folder / "model" / ".metadata"
    honest = index.read_bytes()
    index.write_bytes(code)
    with pytest.raises(CheckpointError, match=r"posix\.system has no place in a checkpoint's index"):
        import_torcheasyrec(folder, tmp_path / "run", wishes=Wishes(map=given.names))
    index.write_bytes(honest)
    for file in (folder / "model").glob("*.distcp"):
        file.write_bytes(code + b"\0" * file.stat().st_size)
    with pytest.raises(CheckpointError, match="cannot be read"):
        import_torcheasyrec(folder, tmp_path / "run", wishes=Wishes(map=given.names))
    assert not trap.exists()
    assert not (tmp_path / "run").exists()


def test_an_output_that_is_there_is_left_alone(given: Given, tmp_path: Path) -> None:
    config = given.make_config()
    folder = given.write({"x": torch.zeros(1)}, config.text)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="is there already, and not empty"):
        import_torcheasyrec(folder, tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["notes.txt"]
    with pytest.raises(CheckpointError, match=r"no name of an embedding group, such as model\.embedding_group\.emb_impls\.\.\., among x"):
        import_torcheasyrec(folder, tmp_path / "other")


def test_an_unsupported_part_of_the_config_is_named(given: Given, tmp_path: Path) -> None:
    config = given.make_config()
    state = given.state(build_model(config, features_of(config)))
    folder = given.write(state, config.text.replace("train_config {", "train_config { delta_embedding_dump_config {}"))
    with pytest.raises(ConfigError, match="delta_embedding_dump_config is not supported yet"):
        import_torcheasyrec(folder, tmp_path / "run", wishes=Wishes(map=given.names))
    path = import_torcheasyrec(folder, tmp_path / "run", config=Path(config.source), wishes=Wishes(map=given.names))
    assert json.loads((path / "state.json").read_text())["step"] == 10
