"""`emberline plan`: a dry run from the command line."""

import json
from pathlib import Path

import pytest

from emberline.cli import main
from emberline.errors import ConfigError
from emberline.train.config import parse_config
from emberline.train.sharding.plan_cli import plannable_model, read_bandwidths
from emberline.train.sharding.saved_plan import read_plan
from tests.train.sharding.cases import deep, id_feature, zch_feature

TEXT = id_feature("a", 1000, 16, 'sharding_types: "row_wise"') + id_feature("b", 500) + zch_feature("z", 40) + deep("a", "b", "z")
OPTIMIZERS = "sparse_optimizer { adagrad_optimizer {} } dense_optimizer { sgd_optimizer {} }"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "c.config"
    path.write_text(TEXT)
    return path


def test_everything_that_is_asked_for_is_written(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {name: tmp_path / name for name in ("plan.json", "numbers.json", "plan.png")}
    command = ["plan", "--config", str(config), "--world-size", "4", "--local-world-size", "2", "--hbm", "1GiB", "--ddr", "8GiB"]
    command += ["--output", str(files["plan.json"]), "--json", str(files["numbers.json"]), "--png", str(files["plan.png"])]
    assert main([*command, "--bandwidths", "hbm=3000,inter_node=12.5", "--batch-size", "64", "--storage-reserve", "0.5"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "4 cuda ranks, 2 a machine, each with 1 GiB hbm, 8 GiB ddr; 64 rows a step"
    assert shown[1].startswith(
        "GB/s: hbm 3000 (given), ddr 100 (assumed), hbm_to_ddr 25 (assumed), intra_node 300 (assumed), inter_node 12.5 (given)"
    )
    assert shown[2].startswith("kept free on each rank: 512 MiB (share 512 MiB")
    numbers = json.loads(files["numbers.json"].read_text())
    assert [table["table"] for table in numbers["tables"]] == [
        f"embedding_group.pooled.{name}" for name in ("ebc.a_emb", "ebc.b_emb", "mc_ebc.z_emb")
    ]
    plan = read_plan(files["plan.json"])
    assert (plan.world_size, plan.local_world_size, plan.device) == (4, 2, "cuda")
    assert {path.rpartition(".")[2]: table.sharding_type for path, table in plan.tables.items()}["a_emb"] == "row_wise"
    assert files["plan.png"].read_bytes()[:4] == b"\x89PNG"


def test_a_written_plan_is_checked_and_shown_again(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["plan", "--config", str(config), "--world-size", "2", "--ddr", "1GiB"]
    assert main([*command, "--output", str(tmp_path / "plan.json")]) == 0
    first = capsys.readouterr().out
    assert main([*command, "--plan", str(tmp_path / "plan.json")]) == 0
    assert capsys.readouterr().out == first
    (tmp_path / "hand.json").write_text(
        '{"format": "emberline.plan", "version": 1, "world_size": 2, "tables": {"a_emb": {"sharding_type": "row_wise"}, '
        '"b_emb": {"sharding_type": "table_wise", "ranks": [2]}}}'
    )
    assert main([*command, "--plan", str(tmp_path / "hand.json")]) == 2
    told = capsys.readouterr().err
    assert "table 'embedding_group.pooled.ebc.b_emb': there are ranks 0 to 1, found 2" in told
    assert "table 'embedding_group.pooled.mc_ebc.z_emb' is not in the plan" in told


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--world-size", "0"], "--world-size must be at least 1, found 0"),
        (["--world-size", "1000000000"], "--world-size must be at most 16384, found 1000000000"),
        (["--world-size", "3", "--local-world-size", "2"], "local_world_size must divide world_size 3, found 2"),
        (["--world-size", "2", "--hbm", "80 gigs"], "'80 gigs' is no size"),
        (["--world-size", "2", "--hbm", "0"], "--hbm must be above 0, found 0; leave it out for CPUs"),
        (["--world-size", "2", "--hbm", "80"], "--hbm: 80 would be 80 bytes; write a unit: say 80GiB"),
        (["--world-size", "2", "--ddr", "100"], "--ddr: 100 would be 100 bytes; write a unit: say 100GiB"),
        (["--world-size", "2", "--ssd", "lots"], "--ssd: 'lots' is no size"),
        (["--world-size", "2", "--sample-batches", "-2"], "--sample-batches must be 0 or more, and below 4294967296, found -2"),
        (["--world-size", "2", "--sample-batches", str(10**20)], "--sample-batches must be 0 or more, and below 4294967296, found 1000"),
        (["--world-size", "2", "--sample-batches", "2"], "(--sample-batches), and train_input_path is missing: name the training files"),
        (["--world-size", "2", "--output", "/none/plan.json"], "--output: /none/plan.json: there is no folder /none; make it first"),
        (["--world-size", "2", "--json", "/none/n.json", "--png", "/"], "--json: /none/n.json: there is no folder /none; make it first"),
        (["--world-size", "2", "--png", "/"], "--png: / is a folder; name a file in it"),
        (["--world-size", "2", "--json", "/proc/n.json"], "--json: /proc/n.json can't be written: "),
        (["--world-size", "2", "--ddr", "1KiB"], "the tables do not fit on 2 cpu ranks, 2 a machine, each with 1 KiB ddr"),
        (["--world-size", "2", "--batch-size", "0"], "--batch-size must be at least 1, found 0"),
        (["--world-size", "2", "--storage-reserve", "1"], "--storage-reserve must be in [0, 1), found 1.0"),
        (["--world-size", "2", "--bandwidths", "hbn=3"], "--bandwidths: unknown bandwidth 'hbn'; did you mean 'hbm'?"),
        (["--world-size", "64"], "table 'z_emb': nothing is left to choose"),
        (["--world-size", "2", "--plan", "none.json"], "none.json: the plan can't be read"),
    ],
)
def test_wrong_options_are_told(config: Path, capsys: pytest.CaptureFixture[str], options: list[str], problem: str) -> None:
    assert main(["plan", "--config", str(config), *options]) == 2
    assert problem in capsys.readouterr().err


def test_bandwidths_are_read() -> None:
    assert read_bandwidths("") == {}
    assert read_bandwidths(" hbm=2000, ddr=1e2,") == {"hbm": 2000.0, "ddr": 100.0}
    with pytest.raises(ConfigError) as caught:
        read_bandwidths("hbm=fast,ddr=0,x=1,intra_node=inf")
    assert list(caught.value.problems) == [
        "--bandwidths: hbm must be a number above 0, found 'fast'",
        "--bandwidths: ddr must be a number above 0, found '0'",
        "--bandwidths: unknown bandwidth 'x'; known: hbm, ddr, hbm_to_ddr, intra_node, inter_node",
        "--bandwidths: intra_node must be a number above 0, found 'inf'",
    ]


def test_tables_have_no_memory_and_moments_count_where_an_optimiser_is_named() -> None:
    plain = plannable_model(parse_config(TEXT))
    trained = plannable_model(parse_config(TEXT + f"train_config {{ {OPTIMIZERS} }}"))
    for model, has_optimizer in ((plain, False), (trained, True)):
        tables = [parameter for name, parameter in model.named_parameters() if name.endswith("_emb.weight")]
        assert len(tables) == 3
        assert {(table.is_meta, hasattr(table, "_optimizer_classes")) for table in tables} == {(True, has_optimizer)}


def test_widths_that_kernels_do_not_know_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "c.config").write_text(id_feature("a", 10, 6) + deep("a"))
    plan = ["plan", "--config", str(tmp_path / "c.config"), "--world-size", "2"]
    assert main([*plan, "--hbm", "1GiB"]) == 2
    assert "table 'a_emb', read by a, has embedding_dim 6: training on a GPU needs a multiple of 4" in capsys.readouterr().err
    assert main(plan) == 0  # our kernels on a CPU know every width
