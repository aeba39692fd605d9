"""Private tables whose rows have gaps behind them: read from files as they are, and the same answers as without."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from emberline.digests import PIECE_BYTES
from emberline.errors import ConfigError
from emberline.schema import BucketEncoder, LookupSpec, Pooling
from emberline.serving import Engine, PackedRequest, stored_files
from emberline.serving.files import write_tensors
from emberline.serving.stored_files import StoredFile, take_in
from emberline.serving.triton.settings import TritonSettings
from tests.serving.conftest import ToyModel, make_lookup_model, random_request, sparse
from tests.serving.deltas.toy_delta import changed, require_answers, write_delta


def numbers(rows: int, width: int, dtype: torch.dtype) -> Tensor:
    return torch.randint(0, 256, (rows, width * dtype.itemsize), dtype=torch.uint8, generator=torch.Generator().manual_seed(rows)).view(dtype)


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize(
    ("rows", "pitch"),
    [
        (numbers(7, 15, torch.float32), 16),
        (numbers(33, 15, torch.bfloat16), 16),
        (numbers(5, 62, torch.float16), 64),
        (numbers(2 * PIECE_BYTES // 60 + 9, 60, torch.uint8), 64),
        (numbers(9, 68, torch.uint8), 68),
        (numbers(0, 15, torch.float32), 15),
    ],
    ids=str,
)
def test_rows_come_from_files_as_they_are(tmp_path: Path, rows: Tensor, pitch: int, verify: bool) -> None:
    entry = write_tensors(tmp_path / "t", {"before": torch.arange(5), "rows": rows, "behind": torch.arange(70)})
    stored = StoredFile(tmp_path / "t", "t", entry if verify else None, ["rows"], row_growth=0.125)
    found, problems = take_in({"t": stored})
    table = found["t"]["rows"]
    assert (problems, table.shape, table.dtype, table.stride()) == ([], rows.shape, rows.dtype, (pitch, 1))
    assert torch.equal(table.contiguous().view(torch.uint8), rows.view(torch.uint8))
    assert table.data_ptr() % 64 == 0 or not len(rows)
    assert torch.equal(found["t"]["behind"], torch.arange(70))


def test_a_changed_byte_is_seen_between_gaps(tmp_path: Path) -> None:
    entry = write_tensors(tmp_path / "t", {"rows": numbers(2 * PIECE_BYTES // 60, 15, torch.float32)})
    data = bytearray((tmp_path / "t").read_bytes())
    data[PIECE_BYTES + 7] ^= 1
    (tmp_path / "t").write_bytes(data)
    assert len(take_in({"t": StoredFile(tmp_path / "t", "t", entry, ["rows"], row_growth=1)})[1]) == 1


@pytest.fixture
def gaps_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_files, "pitch_of", lambda row_bytes, unit, growth: row_bytes + 2 * unit * (growth > 0))


@pytest.mark.usefixtures("gaps_everywhere")
@pytest.mark.parametrize("lookup", ["native", "torch"])
def test_answers_before_and_after_a_delta(toy: ToyModel, toy_artifact: Path, lookup: str) -> None:
    engine = Engine.open(toy_artifact, lookup=lookup)
    assert all(engine.artifact.tables[name].stride(0) == rows.shape[1] + 2 for name, rows in toy.tables.items())
    require_answers(engine, toy)
    assert engine.table_memory().num_bytes == sum(4 * len(rows) * (rows.shape[1] + 2) for rows in toy.tables.values())
    engine.apply_delta(write_delta(toy_artifact, changed(toy)))
    require_answers(engine, changed(toy))
    assert engine.artifact.overlaid == {}
    assert all(torch.equal(engine.artifact.tables[name], rows) for name, rows in changed(toy).tables.items())
    require_answers(Engine.open(toy_artifact, lookup=lookup), changed(toy))


def test_rows_of_60_bytes_get_a_line_each_unless_told_otherwise(tmp_path: Path) -> None:
    features = (sparse("a", BucketEncoder(rows=40)), sparse("b", BucketEncoder(rows=9)))
    lookups = (
        LookupSpec(key="a", feature="a", table="t", pooling=Pooling.SUM, dim=15),
        LookupSpec(key="b", feature="b", table="u", pooling=Pooling.SUM, dim=5),
    )
    draw = torch.Generator().manual_seed(3)
    model = make_lookup_model(lookups, features, {"t": torch.randn(40, 15, generator=draw), "u": torch.randn(9, 5, generator=draw)})
    root = model.write(tmp_path)
    engines = [Engine.open(root), Engine.open(root, row_growth=0), Engine.open(root, tables="mapped"), Engine.open(root, lookup="torch")]
    assert [engine.artifact.tables["t"].stride(0) for engine in engines] == [16, 15, 15, 16]
    assert [engine.artifact.tables["u"].stride(0) for engine in engines] == [5] * 4
    request = PackedRequest(**random_request(model.schema, num_rows=30, seed=1))
    answers = [engine.lookup(request)["pooled"] for engine in engines]
    assert all(torch.equal(answer, answers[0]) for answer in answers)


@pytest.mark.parametrize("growth", [-0.1, float("inf"), float("nan")])
def test_other_growth_is_refused(toy_artifact: Path, growth: float) -> None:
    with pytest.raises(ConfigError, match=r"^tables cannot grow by .*: give a share from 0 on, such as 0\.125$"):
        Engine.open(toy_artifact, row_growth=growth)


@pytest.mark.parametrize(("tables", "problem"), [("mapped", "tables that are mapped do not grow"), ("disk", "tables that are on disk do not grow")])
def test_tables_that_cannot_grow_are_not_asked_to(toy_artifact: Path, tables: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=f"row_growth is for private tables on a CPU: {problem}; leave it out"):
        Engine.open(toy_artifact, tables=tables, row_growth=0.5)
    assert Engine.open(toy_artifact, tables=tables, row_growth=0).version == 1
    with pytest.raises(ConfigError, match="tables in memory of cuda do not grow"):
        TritonSettings(device="cuda", row_growth=0.5)
    with pytest.raises(ConfigError, match=problem):
        TritonSettings(tables=tables, row_growth=0.5)
