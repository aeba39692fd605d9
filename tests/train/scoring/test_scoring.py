"""Evaluating and scoring files: the numbers of the training's own evaluation, and the answers of the trained model, row by row."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import torch

from emberline import cli
from emberline.encoding import columns_from_arrow, encode
from emberline.errors import ConfigError, DataError
from emberline.train.checkpoint import Trained, load_trained
from emberline.train.config import load_config
from emberline.train.data import batch_from_encoded
from emberline.train.job import run_training
from emberline.train.scoring.evaluation import evaluate_files
from emberline.train.scoring.model import Scorer, open_scorer
from emberline.train.scoring.outputs import write_outputs
from emberline.train.scoring.rows import RowStream
from emberline.train.sharding.process_group import ALONE
from tests.train.conftest import config_text

pytestmark = pytest.mark.usefixtures("one_thread")


def expected(trained: Trained, table: pa.Table) -> dict[str, np.ndarray[Any, Any]]:
    """The trained model's answers to all rows at once."""
    specs = [feature.spec for feature in trained.features]
    columns = columns_from_arrow(specs, table.combine_chunks().to_batches()[0])
    with torch.no_grad():
        outputs = trained.model(batch_from_encoded(trained.features, encode(specs, columns, table.num_rows)))
    return {name: output.numpy() for name, output in outputs.items()}


def written(folder: Path) -> pa.Table:
    return pq.read_table(folder)


@pytest.fixture
def scorer(finished_run: Path) -> Any:
    with open_scorer(finished_run, ALONE) as opened:
        yield opened


def test_answers_and_keys_are_those_of_the_rows(scorer: Scorer, finished_run: Path, train_data: Path, tmp_path: Path) -> None:
    table = pq.read_table(train_data / "eval.parquet")
    assert write_outputs(scorer, train_data / "eval.parquet", tmp_path / "out", keep=("user", "item", "tags", "label"), batch_size=7) == 100
    found = written(tmp_path / "out")
    assert found.column_names == ["user", "item", "tags", "label", "logits", "probs"]
    assert found.select(["user", "item", "tags", "label"]).equals(table.select(["user", "item", "tags", "label"]))
    for name, values in expected(load_trained(finished_run), table).items():
        assert found.column(name).type == pa.float32()
        np.testing.assert_allclose(found.column(name).to_numpy(), values, atol=1e-6)
    summary = json.loads((tmp_path / "out" / "_scores.json").read_text())
    assert summary == {"checkpoint": str(finished_run / "step-4"), "step": 4, "rows": 100, "outputs": ["logits", "probs"]}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


def test_several_files_come_in_order_and_outputs_can_be_chosen(scorer: Scorer, train_data: Path, tmp_path: Path) -> None:
    paths = [train_data / "eval.parquet", train_data / "train.parquet"]
    (tmp_path / "out").mkdir()
    assert write_outputs(scorer, paths, tmp_path / "out", outputs=("probs",)) == 740
    found = written(tmp_path / "out")
    whole = pa.concat_tables([pq.read_table(path) for path in paths])
    assert found.column_names == ["probs"]
    np.testing.assert_allclose(found.column("probs").to_numpy(), expected(load_trained(scorer.path), whole)["probs"], atol=1e-6)


def test_no_rows_at_all(scorer: Scorer, train_data: Path, tmp_path: Path) -> None:
    pq.write_table(pq.read_table(train_data / "eval.parquet").slice(0, 0), tmp_path / "empty.parquet")
    assert write_outputs(scorer, tmp_path / "empty.parquet", tmp_path / "out") == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["_scores.json"]
    rows = RowStream(scorer.config.data, scorer.features, train_data / "eval.parquet", 10, (), ALONE)
    assert scorer.answers(rows.no_rows())["probs"].shape == (0,)


def test_csv_rows_are_scored_too(train_data: Path, tmp_path: Path) -> None:
    features = """
feature_configs { id_feature { feature_name: "item" expression: "item:item" embedding_dim: 8 hash_bucket_size: 50 } }
feature_configs { raw_feature { feature_name: "age" expression: "user:age" } }
"""
    groups = 'feature_groups { group_name: "dense" feature_names: "age" } feature_groups { group_name: "sparse" feature_names: "item" }'
    table = pq.read_table(train_data / "eval.parquet").select(["item", "age", "label", "grade"])
    pyarrow.csv.write_csv(table, tmp_path / "train.csv")
    model = "dlrm { dense_mlp { hidden_units: 8 } final { hidden_units: 4 } }"
    text = config_text(tmp_path, features=features, groups=groups, train="num_steps: 2", model=model)
    text = text.replace("train.parquet", "train.csv").replace("eval.parquet", "train.csv").replace("ParquetDataset", "CsvDataset with_header: true")
    (tmp_path / "c.pbtxt").write_text(text)
    run_training(load_config(tmp_path / "c.pbtxt"), tmp_path / "run")
    with open_scorer(tmp_path / "run", ALONE) as scorer:
        assert write_outputs(scorer, tmp_path / "train.csv", tmp_path / "out", keep=("grade",), batch_size=30) == 100
        answers = expected(load_trained(tmp_path / "run"), pyarrow.csv.read_csv(tmp_path / "train.csv"))
    found = written(tmp_path / "out")
    assert found.column("grade").to_pylist() == [str(grade) for grade in table.column("grade").to_pylist()]
    np.testing.assert_allclose(found.column("probs").to_numpy(), answers["probs"], atol=1e-6)


def test_an_evaluation_gives_the_numbers_of_the_training(scorer: Scorer, finished_run: Path, train_data: Path) -> None:
    logged = [json.loads(line) for line in (finished_run / "metrics.jsonl").read_text().splitlines()]
    (wanted,) = (line for line in logged if line["kind"] == "eval" and line["step"] == 4)
    numbers = evaluate_files(scorer)
    assert numbers == {name: wanted[name] for name in numbers}
    assert evaluate_files(scorer, train_data / "eval.parquet", batch_size=9) == pytest.approx(numbers)
    assert evaluate_files(scorer, train_data / "train.parquet", num_steps=2, batch_size=50)["rows"] == 100


def test_what_cannot_be_is_told_and_leaves_nothing(scorer: Scorer, train_data: Path, tmp_path: Path) -> None:
    data, out = train_data / "eval.parquet", tmp_path / "out"
    with pytest.raises(ConfigError, match="the model has no output 'prob'; its outputs are logits, probs"):
        write_outputs(scorer, data, out, outputs=("prob",))
    with pytest.raises(ConfigError, match="column 'user' would be there twice: it is kept, and kept again"):
        write_outputs(scorer, data, out, keep=("user", "user"))
    with pytest.raises(DataError, match="has no column 'usr'"):
        write_outputs(scorer, data, out, keep=("usr",))
    bad = pq.read_table(data).set_column(2, "tags", pa.array([["1:0.5"]] * 60 + [["99:1"]] * 40))
    pq.write_table(bad, tmp_path / "bad.parquet")
    with pytest.raises(DataError, match="row 60"):
        write_outputs(scorer, tmp_path / "bad.parquet", out, batch_size=20)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.parquet"]
    out.mkdir()
    (out / "mine").write_text("")
    with pytest.raises(ConfigError, match="out is there already, and not empty"):
        write_outputs(scorer, data, out)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="file is there already"):
        write_outputs(scorer, data, tmp_path / "file")


def test_the_commands(finished_run: Path, train_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["evaluate", "--checkpoint", str(finished_run), "--output", str(tmp_path / "new" / "metrics.json")]) == 0
    told = capsys.readouterr().out.splitlines()
    content = json.loads((tmp_path / "new" / "metrics.json").read_text())
    assert told[0] == f"checkpoint {finished_run / 'step-4'}: step 4"
    assert (content["step"], content["metrics"]["rows"]) == (4, 100)
    assert told[1].startswith(f"auc {content['metrics']['auc']:.6g}, log_loss ")
    arguments = ["--checkpoint", str(finished_run / "step-2"), "--input", f"{train_data}/eval.parquet", "--output", str(tmp_path / "out")]
    assert cli.main(["score", *arguments, "--keep-columns", "user, item", "--batch-size", "64"]) == 0
    assert f"100 rows scored, written to {tmp_path / 'out'}" in capsys.readouterr().out
    assert written(tmp_path / "out").column_names == ["user", "item", "logits", "probs"]
    assert cli.main(["score", *arguments]) == 2
    assert "is there already, and not empty" in capsys.readouterr().err
    assert cli.main(["evaluate", "--checkpoint", str(tmp_path / "nowhere")]) == 1
    assert "no such directory" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(["evaluate", "--checkpoint", str(finished_run), "--num-steps", "0"])
