"""The commands `export`, `inspect` and `verify`, as a user calls them."""

import shutil
from pathlib import Path

import pytest

from emberline.cli import main
from tests.export.conftest import SmallRun


@pytest.fixture(scope="module")
def models(small_run: SmallRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    models = tmp_path_factory.mktemp("models")
    assert main(["export", "--checkpoint", str(small_run.path), "--output", str(models), "--name", "small", "--format", "torchscript"]) == 0
    return models


def test_export_prints_each_step_and_refuses_a_taken_version(small_run: SmallRun, models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["export", "--checkpoint", str(small_run.path), "--output", str(models), "--name", "small"]
    assert main([*arguments, "--version", "9"]) == 0
    told = capsys.readouterr().out
    assert "table buys_emb: 16 x 4 fp32, 15 raw ids" in told
    assert "parity (torchscript): 320 real rows" in told
    assert told.endswith(f"published {models / 'small' / '9'}\n")
    assert main([*arguments, "--version", "9"]) == 1
    assert "version 9 is already there" in capsys.readouterr().err
    assert main([*arguments, "--format", "onnx,xla"]) == 1
    assert "unknown format 'xla'; known: torchscript, aoti, onnx" in capsys.readouterr().err
    shutil.rmtree(models / "small" / "9")


def test_inspect_tells_tables_features_outputs_and_parity(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(models / "small")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("artifact small, version 1, made ")
    row = next(line for line in lines if line.startswith("uid_emb "))
    assert row.split()[:7] == ["uid_emb", "zch", "40", "4", "fp32", "fp32", "25"]
    row = next(line for line in lines if line.startswith("clicks "))
    assert row.split()[1:] == ["user", "clicks", "bucket,", "weighted", "clicks_emb", "(mean)"]
    assert any(line.split() == ["price", "item", "price", "numeric", "x", "2", "-"] for line in lines)
    assert any(line.split() == ["logits", "[rows]"] for line in lines)
    assert any(line.startswith("parity with the trained model: 320 real rows") for line in lines)


def test_checkpoints_are_inspected_and_verified_too(small_run: SmallRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (small_run.path, small_run.path / "step-7"):
        assert main(["inspect", str(path)]) == 0
        assert capsys.readouterr().out.startswith("checkpoint of step 7\n")
        assert main(["verify", str(path)]) == 0
        assert "all as they were written" in capsys.readouterr().out
    broken = shutil.copytree(small_run.path, tmp_path / "run")
    (broken / "step-7" / "schema.json").write_text("{}")
    assert main(["verify", str(broken)]) == 1
    assert "schema.json" in capsys.readouterr().err


def test_verify_names_any_file_that_was_changed_added_or_lost(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = models / "small" / "1"
    assert main(["verify", str(models / "small")]) == 0
    files = sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())
    assert f"{len(files) - 1} files" in capsys.readouterr().out
    for file in files:
        copy = shutil.copytree(root, tmp_path / file.replace("/", "-") / "1")
        data = bytearray((copy / file).read_bytes())
        data[len(data) // 2] ^= 1
        (copy / file).write_bytes(data)
        assert main(["verify", str(copy)]) == 1
        assert file in capsys.readouterr().err
    lost = shutil.copytree(root, tmp_path / "lost" / "1")
    (lost / "tables" / "uid_emb.safetensors").unlink()
    (lost / "tables" / "spare").write_text("")
    assert main(["verify", str(lost)]) == 1
    told = capsys.readouterr().err
    assert "tables/uid_emb.safetensors is missing" in told
    assert "tables/spare is not listed" in told


def test_verify_wants_the_folder_of_its_own_version(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = shutil.copytree(models / "small" / "1", tmp_path / "small" / "4")
    assert main(["verify", str(copy)]) == 1
    assert "the folder says version 4, manifest.json says 1" in capsys.readouterr().err


def test_paths_without_anything_are_one_clear_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("inspect", "verify"):
        assert main([command, str(tmp_path)]) == 1
        assert "no artifact here" in capsys.readouterr().err
        assert main([command, str(tmp_path / "gone")]) == 1
        assert "there is no such folder" in capsys.readouterr().err
