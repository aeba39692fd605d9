"""Runs that begin with another run's model: which parts are taken, and that nothing else is."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from emberline import cli
from emberline.errors import CheckpointError, ConfigError
from emberline.train.checkpoint import load_trained
from emberline.train.checkpoint.chunks import Chunks
from emberline.train.checkpoint.run_state import RunTensors
from emberline.train.checkpoint.start import Beginning, prepare
from emberline.train.checkpoint.tensors import Writable, read_tensors
from emberline.train.checkpoint.warm_start import WarmStart, choose_parts
from emberline.train.config import PipelineConfig
from emberline.train.job import run_training
from emberline.train.job_build import build_parts
from emberline.train.sharding import process_group
from emberline.train.zch import zch_modules
from tests.train.conftest import FEATURES

MakeConfig = Callable[..., PipelineConfig]
pytestmark = pytest.mark.usefixtures("one_thread")
RENAMED = FEATURES.replace('feature_name: "item"', 'feature_name: "item" embedding_name: "things"')


@pytest.fixture(autouse=True)
def group_of_one() -> Iterator[None]:
    with process_group():
        yield


def whole(stored: Writable) -> Tensor:
    assert isinstance(stored, Tensor | Chunks)
    return stored.whole() if isinstance(stored, Chunks) else stored


def begun(config: PipelineConfig, begin: Beginning) -> tuple[dict[str, Tensor], RunTensors]:
    """The tensors of a run that was built and then filled."""
    start = prepare(begin, config)
    parts = build_parts(config)
    tensors = RunTensors(parts.sharded, parts.model, parts.step.optimizer, parts.step.tensors())
    start.apply(tensors)
    return {name: whole(value).clone() for name, value in tensors.all().items()}, tensors


def fresh(config: PipelineConfig) -> dict[str, Tensor]:
    return begun(config, Beginning())[0]


def from_run(run: Path, **wishes: object) -> Beginning:
    return Beginning(WarmStart(checkpoint=run, **wishes))  # type: ignore[arg-type]


def stored_of(run: Path, step: int = 4) -> dict[str, Tensor]:
    return read_tensors(run / f"step-{step}" / "tensors")


def test_the_model_is_taken_and_nothing_else(make_config: MakeConfig, finished_run: Path) -> None:
    config = make_config(train="ema { decay: 0.9 }")
    found, stored, anew = begun(config, from_run(finished_run))[0], stored_of(finished_run), fresh(config)
    rows = stored["zch/user_emb/raw_ids"] != 2**63 - 1
    for name, tensor in found.items():
        kind, _, part = name.partition("/")
        if name == "tables/user_emb/weight":
            owned = [*stored["zch/user_emb/rows"][rows].tolist(), 39]  # with the fallback row; others are as they were drawn
            assert torch.equal(tensor[owned], stored[name][owned])
            assert torch.equal(found["zch/user_emb/raw_ids"], stored["zch/user_emb/raw_ids"])
        elif kind == "dense" or part.endswith("/weight"):
            assert torch.equal(tensor, stored[name]), name
        elif kind == "ema":
            assert torch.equal(tensor, stored[f"dense/{part}"]), name
        elif kind == "tables":
            assert torch.equal(tensor, anew[name]), name
        elif kind == "zch" and part.split("/")[1] in ("history_ids", "counters"):
            assert tensor.eq(0).all(), name
    assert not any(name.startswith("dense_optim/") for name in found)
    assert torch.equal(found["rng/0/torch"], anew["rng/0/torch"])


def test_the_model_answers_as_before(make_config: MakeConfig, finished_run: Path) -> None:
    _, tensors = begun(make_config(), from_run(finished_run / "step-2"))
    trained = load_trained(finished_run, 2)
    ids = torch.tensor([1_000_003 * user - 7 for user in range(90)])
    old, new = zch_modules(trained.model)["user_emb"], zch_modules(tensors.model)["user_emb"]
    before = trained.model.embedding_group.table_weights()["user_emb"][old.rows_of(ids)]
    after = read_all(tensors)["tables/user_emb/weight"][new.rows_of(ids)]
    assert torch.equal(before, after)


def read_all(tensors: RunTensors) -> dict[str, Tensor]:
    return {name: whole(value) for name, value in tensors.all().items()}


def test_names_that_differ_are_paired(make_config: MakeConfig, finished_run: Path, tmp_path: Path) -> None:
    config = make_config(features=RENAMED)
    with pytest.raises(CheckpointError) as error:
        choose_parts(WarmStart(checkpoint=finished_run), config)
    assert "tables/things is not there" in str(error.value)
    assert "tables/item_emb is there, and the model has no such part" in str(error.value)
    (tmp_path / "map").write_text("tables/things  tables/item_emb\n")
    found = begun(config, from_run(finished_run, name_map=tmp_path / "map"))[0]
    assert torch.equal(found["tables/things/weight"], stored_of(finished_run)["tables/item_emb/weight"])
    (tmp_path / "map").write_text("tables/thing*  tables/item_emb*\ntables/none tables/item_emb\n")
    with pytest.raises(CheckpointError) as error:
        choose_parts(WarmStart(checkpoint=finished_run, name_map=tmp_path / "map"), config)
    assert "line 2: the model has no part of that name" in str(error.value)
    assert "tables/item_embs: the checkpoint has no tensor of that name" in str(error.value)


def test_what_may_be_missing_or_left_out_is_named(make_config: MakeConfig, finished_run: Path) -> None:
    config = make_config(features=RENAMED)
    chosen = choose_parts(WarmStart(checkpoint=finished_run, allow_missing=["tables/th*"], allow_surplus=["tables/item_emb"]), config)
    assert (chosen.fresh, chosen.left_out) == (("tables/things",), ("tables/item_emb",))
    assert chosen.lines()[1:] == ["  begins afresh: tables/things", "  left out: tables/item_emb"]
    found, anew = begun(config, from_run(finished_run, allow_missing=["tables/*"], allow_surplus=["*"]))[0], fresh(config)
    assert torch.equal(found["tables/things/weight"], anew["tables/things/weight"])
    assert torch.equal(found["tables/tags_emb/weight"], stored_of(finished_run)["tables/tags_emb/weight"])
    with pytest.raises(CheckpointError) as error:
        choose_parts(WarmStart(checkpoint=finished_run, allow_missing=["tables/x"], allow_surplus=["y"]), config)
    assert "--allow-missing tables/x: the model has no such part" in str(error.value)
    assert "--allow-surplus y: the checkpoint has no such part" in str(error.value)


def test_other_shapes_and_kinds_are_refused_or_begin_afresh(make_config: MakeConfig, finished_run: Path) -> None:
    config = make_config(features=FEATURES.replace("num_buckets: 12", "num_buckets: 13"))
    with pytest.raises(CheckpointError, match=r"tables/tags_emb is float32 \[12, 8\] there, and float32 \[13, 8\] here"):
        choose_parts(WarmStart(checkpoint=finished_run), config)
    assert choose_parts(WarmStart(checkpoint=finished_run, allow_missing=["tables/tags_emb"]), config).fresh == ("tables/tags_emb",)
    fixed = make_config(features=FEATURES.replace("zch { zch_size: 40 eviction_interval: 2 lfu {} }", "hash_bucket_size: 40"))
    with pytest.raises(CheckpointError, match="tables/user_emb is a ZCH table there, and a table of fixed rows here"):
        choose_parts(WarmStart(checkpoint=finished_run), fixed)


@pytest.mark.parametrize("size", [60, 10])
def test_a_zch_table_may_have_another_size(make_config: MakeConfig, finished_run: Path, size: int, capsys: pytest.CaptureFixture[str]) -> None:
    config = make_config(features=FEATURES.replace("zch_size: 40", f"zch_size: {size}"))
    found, stored = begun(config, from_run(finished_run))[0], stored_of(finished_run)
    old = dict(zip(stored["zch/user_emb/raw_ids"].tolist(), stored["zch/user_emb/rows"].tolist(), strict=True))
    new = dict(zip(found["zch/user_emb/raw_ids"].tolist(), found["zch/user_emb/rows"].tolist(), strict=True))
    counts = dict(zip(stored["zch/user_emb/raw_ids"].tolist(), stored["zch/user_emb/counts"].tolist(), strict=True))
    owners = [raw for raw in new if raw != 2**63 - 1]
    assert len(owners) == min(len(old) - 1, size - 1)
    for raw in owners:
        assert torch.equal(found["tables/user_emb/weight"][new[raw]], stored["tables/user_emb/weight"][old[raw]])
    lost = [raw for raw in old if raw not in new]
    assert max((counts[raw] for raw in lost), default=0) <= min(counts[raw] for raw in owners)


TRAIN = "num_steps: 7 ema { decay: 0.9 } grad_scaler { init_scale: 8 growth_interval: 2 }"


@pytest.fixture
def parted(make_config: MakeConfig, tmp_path: Path) -> tuple[dict[str, Tensor], Path]:
    """All tensors of a run of 7 steps, with averages and a loss scale; and a run that ended after 4."""
    run_training(make_config(train=TRAIN), tmp_path / "whole")
    run_training(make_config(train=TRAIN.replace("7", "4")), tmp_path / "first")
    return stored_of(tmp_path / "whole", 7), tmp_path / "first"


def test_with_its_progress_a_run_ends_in_another_folder_as_it_would_have(
    make_config: MakeConfig, parted: tuple[dict[str, Tensor], Path], tmp_path: Path
) -> None:
    expected, first = parted
    (tmp_path / "map").write_text("tables/things  tables/item_emb\n")
    config = make_config(train=TRAIN, features=RENAMED)
    begin = from_run(first, name_map=tmp_path / "map", with_progress=True)
    result = run_training(config, tmp_path / "second", begin=begin)
    found = {name.replace("/things/", "/item_emb/"): tensor for name, tensor in stored_of(tmp_path / "second", 7).items()}
    assert (result.step, set(found)) == (7, set(expected))
    assert [name for name, tensor in expected.items() if not torch.equal(found[name], tensor)] == []
    state = {run: (tmp_path / run / "step-7" / "state.json").read_text() for run in ("whole", "second")}
    assert state["whole"] == state["second"]


def test_with_progress_only_what_changed_begins_afresh(make_config: MakeConfig, parted: tuple[dict[str, Tensor], Path]) -> None:
    first, changed = parted[1], ("head.final_mlp.", "head.output.")
    narrow = "dlrm { dense_mlp { hidden_units: [16, 8] dropout_ratio: [0.2] } final { hidden_units: [12] dropout_ratio: [0.2] use_bn: true } }"
    config = make_config(train=TRAIN, features=RENAMED, model=narrow)
    missing = ["tables/things", *(f"dense/{name}*" for name in changed)]
    begin = from_run(first, with_progress=True, allow_missing=missing, allow_surplus=["tables/item_emb"])
    start = prepare(begin, config)
    assert start.progress is not None
    assert (start.progress.step, start.progress.rows) == (4, 128)
    assert start.chosen is not None
    afresh = {part.removeprefix("dense/") for part in start.chosen.fresh}
    assert {"tables/things", "head.final_mlp.layers.0.weight", "head.output.weight"} < afresh
    found, before, anew = begun(config, begin)[0], stored_of(first), fresh(config)
    rows = before["zch/user_emb/rows"][before["zch/user_emb/raw_ids"] != 2**63 - 1]
    kinds = set()
    for name, tensor in found.items():
        kind, _, part = name.partition("/")
        if name in ("tables/things/weight", "tables/things/sum") or (kind in ("dense", "ema") and part in afresh):
            assert torch.equal(tensor, anew[name]), name
        elif name == "tables/things/step":
            assert tensor.item() == 4  # all tables count together, whichever learn together by this plan or the next
        else:
            # rows that nobody owns are as they were drawn, and nobody asks how often the id "no owner" was met
            own: Any = {"tables/user_emb/weight": rows, "tables/user_emb/sum": rows, "zch/user_emb/counts": slice(-1)}.get(name, ...)
            assert torch.equal(tensor[own], before[name][own]), name
            kinds.add(kind)
    assert kinds == {"tables", "zch", "dense", "dense_optim", "ema", "scaler", "rng"}
    assert not any(name.startswith(f"dense_optim/{part}/") for part in afresh for name in found)


def test_moments_of_another_optimiser_are_refused(make_config: MakeConfig, finished_run: Path) -> None:
    config = make_config(sparse="adam_optimizer { lr: 0.01 }")
    with pytest.raises(CheckpointError, match="exp_avg"):
        begun(config, from_run(finished_run, with_progress=True))


def test_a_checkpoint_that_is_not_there_is_told_before_anything_is_built(make_config: MakeConfig, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such directory"):
        prepare(from_run(tmp_path / "nowhere"), make_config())


def test_a_map_that_cannot_be_read_is_told(make_config: MakeConfig, finished_run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the name map cannot be read"):
        prepare(from_run(finished_run, name_map=tmp_path / "nothing"), make_config())


def test_the_command(make_config: MakeConfig, finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = make_config(train="num_steps: 2", features=RENAMED)
    arguments = ["train", "--config", config.source, "--output", str(tmp_path / "run"), "--warm-start", str(finished_run)]
    assert cli.main(arguments) == 1
    assert "tables/things is not there" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    assert cli.main([*arguments, "--allow-missing", "tables/things", "--allow-surplus", "tables/item_emb"]) == 0
    told = capsys.readouterr().out
    assert f"warm start from {finished_run}/step-4: " in told
    assert "  begins afresh: tables/things\n  left out: tables/item_emb\n" in told
    assert cli.main([*arguments, "--allow-missing", "tables/things", "--allow-surplus", "tables/item_emb", "--resume"]) == 0
    told = capsys.readouterr().out
    assert "warm start from" not in told
    assert f"--warm-start {finished_run} is for a run that begins: this one goes on, and leaves it out" in told
    gone = [*arguments[:-1], str(tmp_path / "gone"), "--init-table", f"things={tmp_path}/gone.parquet", "--resume"]
    assert cli.main(gone) == 0
    assert f"--init-table things={tmp_path}/gone.parquet is for a run that begins" in capsys.readouterr().out
    assert cli.main(["train", "--config", config.source, "--output", str(tmp_path / "other"), "--map", "x"]) == 2
    assert "are for --warm-start: to go on with a model that changed, begin a new run with" in capsys.readouterr().err
