"""Options of the commands that write Triton repositories: each setting has one, in `export` and in `triton-repository`."""

import argparse
from dataclasses import fields
from pathlib import Path

import pytest

from emberline.cli import main
from emberline.errors import ConfigError
from emberline.export import remote
from emberline.serving.limits import RequestLimits
from emberline.serving.triton.options import add_options, given_options, settings_of
from emberline.serving.triton.settings import DEFAULTS, TritonSettings
from tests.serving.conftest import make_toy
from tests.serving.triton.test_config import parse

GIVEN = ["--device", "cuda:1", "--instances", "2", "--threads", "3", "--tables", "disk", "--by-feature", "--max-waiting", "7", "--timeout", "1.5"]
GIVEN += ["--delta-poll", "0", "--row-growth", "0", "--program-format", "onnx", "--lookup", "torch", "--cache", "kept"]
GIVEN += ["--max-request-rows", "4", "--max-request-ids", "5", "--max-padded-steps", "6"]
WANT = TritonSettings(
    device="cuda:1",
    instances=2,
    num_threads=3,
    tables="disk",
    by_feature=True,
    max_waiting=7,
    timeout_s=1.5,
    delta_poll_s=0,
    row_growth=0,
    format="onnx",
    lookup="torch",
    cache=Path("kept"),
    limits=RequestLimits(rows=4, ids=5, padded_steps=6),
)


def parsed(prefix: str, arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_options(parser, prefix)
    return parser.parse_args([argument.replace("--", f"--{prefix}") for argument in arguments])


@pytest.mark.parametrize("prefix", ["", "triton-"])
def test_every_setting_has_an_option(prefix: str) -> None:
    args = parsed(prefix, GIVEN)
    assert settings_of(args, prefix) == WANT
    assert sorted(given_options(args, prefix)) == sorted(argument.replace("--", f"--{prefix}") for argument in GIVEN if argument.startswith("--"))
    assert settings_of(parsed(prefix, []), prefix) == DEFAULTS
    assert given_options(parsed(prefix, []), prefix) == []
    untold = {field.name for field in fields(TritonSettings) if getattr(WANT, field.name) == getattr(DEFAULTS, field.name)}
    assert untold <= {"max_merged_requests", "model_control"}


def test_numbers_are_checked_as_in_python() -> None:
    with pytest.raises(ConfigError, match="instances must be a whole number from 1 on; found 0"):
        settings_of(parsed("", ["--instances", "0"]))
    with pytest.raises(ConfigError, match="rows must be a whole number from 1 on; found -1"):
        settings_of(parsed("", ["--max-request-rows", "-1"]))


def test_a_repository_is_written_with_the_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_toy().write(tmp_path / "models", 3)
    arguments = [
        "triton-repository",
        str(tmp_path / "models"),
        str(tmp_path / "triton"),
        "--instances",
        "2",
        "--by-feature",
        "--max-request-rows",
        "9",
    ]
    assert main(arguments) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'triton' / 'toy'}: version 3\n"
    config = parse((tmp_path / "triton" / "toy" / "config.pbtxt").read_text())
    assert [group.count for group in config.instance_group] == [2]
    assert "values.user" in {item.name for item in config.input}
    assert '"rows": 9' in config.parameters["emberline_limits"].string_value
    assert main([*arguments, "--instances", "0"]) == 2
    assert "instances must be a whole number from 1 on" in capsys.readouterr().err


def test_an_export_writes_with_the_options_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    version = make_toy().write(tmp_path / "models", 3)
    monkeypatch.setattr(remote, "export_anywhere", lambda *given, **options: version)
    arguments = ["export", "--checkpoint", "run", "--output", "models", "--name", "toy", "--triton-instances", "2", "--triton-by-feature"]
    assert main(arguments) == 2
    assert "--triton-instances, --triton-by-feature goes with --triton DIR" in capsys.readouterr().err
    assert main([*arguments, "--triton", str(tmp_path / "triton")]) == 0
    config = parse((tmp_path / "triton" / "toy" / "config.pbtxt").read_text())
    assert [group.count for group in config.instance_group] == [2]
    assert "values.user" in {item.name for item in config.input}
    assert main([*arguments, "--triton", str(tmp_path / "triton"), "--triton-max-request-ids", "0"]) == 2
    assert "ids must be a whole number from 1 on; found 0" in capsys.readouterr().err


@pytest.mark.parametrize(("option", "setting"), [(["--triton-by-feature"], "by_feature"), (["--triton-program-format", "onnx"], "format")])
def test_what_an_ensemble_cannot_do_is_refused_before_anything_is_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], option: list[str], setting: str
) -> None:
    monkeypatch.setattr(remote, "export_anywhere", lambda *given, **options: pytest.fail("nothing is exported"))
    arguments = ["export", "--checkpoint", "run", "--output", "models", "--name", "toy", "--triton", str(tmp_path), "--triton-backend", "pytorch"]
    assert main([*arguments, *option]) == 2
    assert f"{setting} is for the Python backend alone" in capsys.readouterr().err
