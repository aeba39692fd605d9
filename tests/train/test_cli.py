"""The command line: what it prints, and how it ends."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import emberline.train
from emberline.cli import main
from emberline.train.checkpoint import store
from emberline.train.config import PipelineConfig

MakeConfig = Callable[..., PipelineConfig]


def test_train_prints_how_it_ended(make_config: MakeConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = make_config(train="num_steps: 6")
    assert main(["train", "--config", config.source, "--output", str(tmp_path / "run")]) == 0
    out, err = capsys.readouterr()
    assert "done: 6 steps, 0 epochs; loss " in out
    assert f"checkpoint: {tmp_path / 'run' / 'step-6'}" in out
    assert "training 5/6: loss " in err
    assert "evaluation at step 6: auc " in err
    assert main(["train", "--config", config.source, "--output", str(tmp_path / "run")]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert main(["train", "--config", config.source, "--output", str(tmp_path / "run"), "--resume"]) == 0
    assert "going on from" in capsys.readouterr().out


def test_the_config_may_say_where_to_write(make_config: MakeConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = make_config(train="num_steps: 1")
    path = Path(config.source)
    assert main(["train", "--config", str(path)]) == 2
    assert "neither --output nor the config's model_dir says where to write" in capsys.readouterr().err
    path.write_text(f'model_dir: "{tmp_path}/by_config"\n{path.read_text()}')
    assert main(["train", "--config", str(path)]) == 0
    assert store.list_steps(tmp_path / "by_config") == [1]


def test_errors_are_one_line_and_a_status(make_config: MakeConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--config", str(tmp_path / "nothing"), "--output", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err.startswith("emberline: error: ")
    config = make_config(train="num_steps: 1")
    path = Path(config.source)
    path.write_text(path.read_text().replace("train.parquet", "no_such.parquet"))
    assert main(["train", "--config", str(path), "--output", str(tmp_path / "run")]) == 1
    assert "no_such.parquet" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_the_kernel_of_dynamic_tables_can_be_chosen(make_config: MakeConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(make_config(train="num_steps: 1").source)
    text, number = re.subn(r"zch \{[^{}]*(\{[^{}]*\}[^{}]*)*\}|hash_bucket_size: \d+", "dynamicemb { max_capacity: 1000 }", path.read_text(), count=1)
    assert number == 1
    path.write_text(text)
    arguments = ["train", "--config", str(path), "--output", str(tmp_path / "run"), "--dynamic-kernel"]
    with pytest.raises(SystemExit):
        main([*arguments, "fbgemm"])
    assert "invalid choice: 'fbgemm' (choose from 'auto', 'emberline', 'nvidia')" in capsys.readouterr().err
    assert main([*arguments, "nvidia"]) == 2
    assert "NVIDIA's kernel of tables that grow needs CUDA, and these ranks are on cpu" in capsys.readouterr().err
    assert main([*arguments, "emberline"]) == 0
    assert "done: 1 steps" in capsys.readouterr().out


def test_the_stable_names_are_there() -> None:
    for name in emberline.train.__all__:
        assert getattr(emberline.train, name).__name__ == name
        assert name in dir(emberline.train)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = emberline.train.nothing
