"""The quantisation report: its numbers as JSON, as a page and on a terminal, and the limit that it sets."""

import json
import math
from pathlib import Path

import pytest

from emberline.errors import ExportError, QualityError
from emberline.export.quality import Evaluation, QualityReport, is_auc, no_evaluation, summary_lines
from emberline.export.table_errors import TableQuality

TABLES = (
    TableQuality(table="kept", trained="fp16", stored="fp16", rows=10, dim=4, bytes_trained=80, bytes_stored=80),
    TableQuality(
        table="city|emb",
        trained="fp32",
        stored="int8",
        rows=100,
        dim=16,
        bytes_trained=6400,
        bytes_stored=2000,
        max_abs_error=0.25,
        mean_squared_error=0.015625,
        relative_error=0.03125,
        mean_cosine=0.999,
        min_cosine=0.5,
        min_cosine_row=7,
    ),
    TableQuality(
        table="wide",
        trained="fp32",
        stored="int4",
        rows=2,
        dim=1,
        bytes_trained=8,
        bytes_stored=16,
        max_abs_error=0.125,
        mean_squared_error=0.01,
        relative_error=0.5,
        mean_cosine=1.0,
        min_cosine=1.0,
    ),
)
EVALUATION = Evaluation(
    data="rows.parquet", rows=1234, trained={"auc": 0.75, "log_loss": 0.5}, artifact={"auc": 0.625, "log_loss": 0.5625}, note="So it is."
)
REPORT = QualityReport(TABLES, EVALUATION)


def test_the_report_as_json(tmp_path: Path) -> None:
    assert REPORT.write(tmp_path) == ["quality.json", "quality.md"]
    found = json.loads((tmp_path / "quality.json").read_text())
    assert found == REPORT.to_dict()
    assert [table["table"] for table in found["tables"]] == ["kept", "city|emb", "wide"]
    assert found["tables"][1] == {
        **{"table": "city|emb", "trained": "fp32", "stored": "int8", "rows": 100, "dim": 16, "bytes_trained": 6400, "bytes_stored": 2000},
        **{"max_abs_error": 0.25, "mean_squared_error": 0.015625, "relative_error": 0.03125},
        **{"mean_cosine": 0.999, "min_cosine": 0.5, "min_cosine_row": 7},
    }
    assert found["evaluation"] == {
        **{"data": "rows.parquet", "rows": 1234, "note": "So it is.", "change": {"auc": -0.125, "log_loss": 0.0625}},
        **{"trained": EVALUATION.trained, "artifact": EVALUATION.artifact},
    }
    assert {key: found[key] for key in REPORT.summary()} == REPORT.summary()
    assert (found["bytes_trained"], found["bytes_stored"], found["max_abs_error"], found["min_cosine"]) == (6488, 2096, 0.25, 0.5)


def test_the_report_on_a_terminal() -> None:
    assert REPORT.to_lines() == [
        "rows of tables: 2,096 bytes, 32.3 % of 6,488 as trained; largest error 0.25, least cosine of a row 0.500000",
        "  city|emb: fp32 as int8, largest error 0.25, 3.1 % of its size, cosine 0.999000 on average and 0.500000 at least (row 7)",
        "  wide: fp32 as int4, largest error 0.125, 50 % of its size, cosine 1.000000 on average and 1.000000 at least (row 0)",
        "    it gets no smaller, 16 bytes instead of 8: rows of 1 are too short; --quantize wide=fp32 leaves it as it is",
        "metrics as trained and as stored, of 1,234 rows of rows.parquet (So it is.)",
        "  auc: 0.75, 0.625 (-0.12)",
        "  log_loss: 0.5, 0.5625 (+0.062)",
    ]
    assert summary_lines(json.loads(json.dumps(REPORT.summary()))) == [line for line in REPORT.to_lines() if "emb" not in line and "wide" not in line]


def test_another_half_type_takes_as_much() -> None:
    table = TableQuality(table="t", trained="fp16", stored="bf16", rows=10, dim=64, bytes_trained=1280, bytes_stored=1280)
    told = QualityReport([table], EVALUATION).to_lines()[2]
    assert told == "    it gets no smaller, 1,280 bytes instead of 1,280: fp16 takes as much; --quantize t=fp32 leaves it as it is"


def test_the_report_as_a_page() -> None:
    lines = REPORT.to_markdown().splitlines()
    assert lines[:3] == ["# Number types of the tables", "", "2,096 bytes, 32.3 % of the 6,488 that were trained."]
    rows = [line.removeprefix("| ").removesuffix(" |").replace("\\|", "/").split(" | ") for line in lines if line.startswith("|")]
    assert {len(row) for row in rows} == {13, 4}
    assert rows[3] == ["city/emb", "fp32", "int8", "100", "16", "6,400", "2,000", "0.25", "0.0156", "0.0312", "0.9990000", "0.5000000", "7"]
    assert rows[2][-1] == "-"
    assert rows[-2:] == [["auc", "0.75", "0.625", "-0.12"], ["log_loss", "0.5", "0.5625", "+0.062"]]
    assert "1,234 rows of `rows.parquet`. So it is." in lines


def test_numbers_that_are_not_there() -> None:
    none = QualityReport(TABLES[:1], no_evaluation("the data have no labels"))
    assert none.to_dict()["evaluation"] == {"missing": "the data have no labels"}
    assert none.to_lines()[-1] == "metrics as trained and as stored were not compared: the data have no labels"
    assert "Not compared: the data have no labels." in none.to_markdown()
    undefined = QualityReport(TABLES, Evaluation(data="d", rows=3, trained={"auc": math.nan}, artifact={"auc": math.nan}))
    assert undefined.to_dict()["evaluation"]["change"] == {"auc": None}
    assert undefined.to_lines()[-1] == "  auc: not defined on these rows"
    assert QualityReport((), no_evaluation("")).summary()["min_cosine"] == 1.0


@pytest.mark.parametrize(("name", "wanted"), [("auc", True), ("auc_ctr", True), ("log_loss", False), ("aucs", False), ("my_auc", False)])
def test_aucs_are_told_by_their_names(name: str, wanted: bool) -> None:
    assert is_auc(name) is wanted


def test_an_auc_that_falls_by_more_than_the_limit_is_refused_with_the_tables_worst_first() -> None:
    REPORT.require_auc(0.125)
    with pytest.raises(QualityError) as error:
        REPORT.require_auc(0.12)
    assert str(error.value) == (
        "auc falls by 0.125, from 0.75 to 0.625, by more than --max-auc-drop 0.12. Errors by table: "
        "wide (int4): largest error 0.125, 50 % of its size, cosine 1.000000 on average and 1.000000 at least (row 0); "
        "city|emb (int8): largest error 0.25, 3.1 % of its size, cosine 0.999000 on average and 0.500000 at least (row 7). "
        "Keep the first of them wider: --quantize wide=int8"
    )
    assert isinstance(error.value, ExportError)


def test_each_task_has_its_limit_and_a_better_auc_passes() -> None:
    trained = {"auc_ctr": 0.5, "auc_cvr": 0.75}
    better = QualityReport(TABLES, Evaluation(data="d", rows=9, trained=trained, artifact={"auc_ctr": 0.75, "auc_cvr": 0.75}))
    better.require_auc(0)
    worse = QualityReport(TABLES[:1], Evaluation(data="d", rows=9, trained=trained, artifact={"auc_ctr": 0.75, "auc_cvr": 0.5}))
    with pytest.raises(QualityError, match=r"^auc_cvr falls by 0.25, .*; all tables are stored as they were trained$"):
        worse.require_auc(0.1)


def test_an_auc_that_is_not_defined_passes_no_limit() -> None:
    nan = QualityReport(TABLES, Evaluation(data="d", rows=3, trained={"auc": math.nan}, artifact={"auc": math.nan}))
    with pytest.raises(QualityError, match="auc is not defined on 3 rows of d: its labels are of one kind only"):
        nan.require_auc(1)
    with pytest.raises(QualityError, match="--max-auc-drop needs an AUC, and there is none: d has no rows"):
        QualityReport(TABLES, no_evaluation("d has no rows")).require_auc(1)
