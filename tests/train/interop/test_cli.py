"""`emberline import-torcheasyrec`, from its command line."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from emberline.cli import main
from emberline.train.checkpoint import load_trained
from emberline.train.config import PipelineConfig
from emberline.train.models import RecModel, build_model, features_of


def test_map_skip_and_step(
    make_config: Callable[..., PipelineConfig],
    reference_state: Callable[[RecModel], dict[str, torch.Tensor]],
    write_reference: Callable[..., Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = make_config()
    model = build_model(config, features_of(config))
    folder = write_reference({**reference_state(model), "model.unused": torch.zeros(1)}, config.text)
    folder = folder.rename(folder.with_name("best"))
    (tmp_path / "n.map").write_text("head.output.* model.output_mlp.*\nhead.* model.*\n")
    arguments = ["import-torcheasyrec", str(folder), "--output", str(tmp_path / "run"), "--map", str(tmp_path / "n.map")]
    assert main(arguments) == 1
    assert capsys.readouterr().err.endswith("as model.ckpt-1000 would; add --step\n")
    assert main([*arguments, "--step", "-1"]) == 2
    assert capsys.readouterr().err == "emberline: error: --step must be 0 or more, found -1\n"
    assert main([*arguments, "--step", "3"]) == 1
    assert "\n  model.unused: surplus, the model has nothing of that name\n" in capsys.readouterr().err
    assert main([*arguments, "--step", "3", "--skip", "model.unused"]) == 0
    out = capsys.readouterr().out
    assert out.endswith(f"checkpoint: {tmp_path / 'run' / 'step-3'}\n")
    assert "left out of the checkpoint: model.unused\n" in out
    found = load_trained(tmp_path / "run").model
    assert torch.equal(found.head.state_dict()["output.weight"], model.head.state_dict()["output.weight"])
    assert main([*arguments, "--step", "3"]) == 2
    assert "is there already, and not empty" in capsys.readouterr().err


def test_a_map_contradicts_what_else_is_asked_for(
    make_config: Callable[..., PipelineConfig],
    reference_state: Callable[[RecModel], dict[str, torch.Tensor]],
    write_reference: Callable[..., Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = make_config()
    folder = write_reference(reference_state(build_model(config, features_of(config))), config.text)
    (tmp_path / "n.map").write_text("head.output.bias model.output_mlp.bias\n")
    arguments = ["import-torcheasyrec", str(folder), "--output", str(tmp_path / "run"), "--map", str(tmp_path / "n.map")]
    assert main([*arguments, "--embeddings-only", "--skip", "model.output_mlp.*"]) == 1
    said = capsys.readouterr().err
    assert f"model.output_mlp.bias: --skip leaves it out, {tmp_path / 'n.map'} gives it to head.output.bias" in said
    assert f"head.output.bias: starts afresh with --embeddings-only, but {tmp_path / 'n.map'} gives it model.output_mlp.bias" in said
