"""Vectors from files into tables."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchrec.modules.mc_modules import LRU_EvictionPolicy

from emberline import cli
from emberline.errors import ConfigError, DataError
from emberline.train.checkpoint import init_tables, load_trained
from emberline.train.checkpoint.admit import admit
from emberline.train.checkpoint.init_tables import VectorFile, check_vector_files, fill_tables, parse_vector_file
from emberline.train.checkpoint.shards import table_shards
from emberline.train.config import PipelineConfig
from emberline.train.job_build import Parts, build_parts
from emberline.train.sharding import process_group
from emberline.train.zch import ZchModule, zch_modules
from tests.train.conftest import FEATURES

MakeConfig = Callable[..., PipelineConfig]
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def group_of_one() -> Iterator[None]:
    with process_group():
        yield


@pytest.fixture
def parts(make_config: MakeConfig) -> Parts:
    return build_parts(make_config())


def vectors_of(parts: Parts, table: str) -> torch.Tensor:
    (shard,) = (shard for shard in table_shards(parts.sharded) if shard.table == table)
    return shard.weight


def write(path: Path, ids: list[Any], vectors: Any, kind: Any = None) -> Path:
    pq.write_table(pa.table({"vector": pa.array(vectors, kind or pa.list_(pa.float32())), "id": pa.array(ids)}), path)
    return path


def numbers(count: int, dim: int = 8) -> list[list[float]]:
    drawn: list[list[float]] = np.random.default_rng(1).normal(size=(count, dim)).astype(np.float32).tolist()
    return drawn


@pytest.mark.parametrize("kind", [pa.list_(pa.float32()), pa.large_list(pa.float64()), pa.list_(pa.float32(), 8), pa.list_(pa.float16())])
def test_rows_of_a_table_of_fixed_rows(parts: Parts, tmp_path: Path, kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(init_tables, "_ROWS", 3)
    before, vectors = vectors_of(parts, "item_emb").clone(), np.asarray(numbers(7), dtype=np.float16).astype(np.float32)
    ids = [49, 0, 7, 3, 30, 12, 11]
    values = [list(row) for row in (vectors.astype(np.float16) if kind.value_type == pa.float16() else vectors)]
    path = write(tmp_path / "v.parquet", ids, values, kind)
    fill_tables([VectorFile("item_emb", path)], parts.sharded, parts.model)
    expected = before.clone()
    expected[ids] = torch.from_numpy(vectors)
    assert torch.equal(vectors_of(parts, "item_emb"), expected)
    assert not torch.equal(expected, before)


def test_ids_of_a_zch_table_are_admitted(parts: Parts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(init_tables, "_ROWS", 5)
    ids = [-7, 2**63 - 2, 0, -(2**63), *range(100, 112)]
    path, before = write(tmp_path / "v.parquet", ids, numbers(16)), vectors_of(parts, "user_emb").clone()
    fill_tables([VectorFile("user_emb", path)], parts.sharded, parts.model)
    module = zch_modules(parts.model)["user_emb"]
    rows = module.rows_of(torch.tensor(ids))
    assert torch.equal(vectors_of(parts, "user_emb")[rows], torch.tensor(numbers(16)))
    assert (module.rows_in_use, sorted(rows.tolist())) == (16, list(range(16)))
    assert module.rows_of(torch.tensor([5])).tolist() == [39]
    assert torch.equal(vectors_of(parts, "user_emb")[16:], before[16:])
    state = module.state_for_checkpoint()
    assert state["counts"].tolist() == [1] * 16 + [0] * 24
    assert sorted(state["rows"].tolist()) == list(range(40))
    assert state["rows"][-1].item() == 39


@pytest.mark.parametrize(
    ("ids", "vectors", "message"),
    [
        ([1, 50], numbers(2), r"row 1: table 'item_emb' has rows 0 to 49, found id 50"),
        ([-1], numbers(1), r"row 0: table 'item_emb' has rows 0 to 49, found id -1"),
        ([1, 2, 3, 1], numbers(4), r"row 3: the id 1 is there before"),
        ([1, 1], numbers(2), r"row 1: the id 1 is there before"),
        ([1, None], numbers(2), r"row 1: no id"),
        ([1, 2], [numbers(1)[0], None], r"row 1: no vector"),
        ([1, 2], [numbers(1)[0], [1.0]], r"row 1: the table has vectors of 8 numbers, found 1"),
        ([1], [[1.0] * 7 + [float("nan")]], r"row 0: a number of the vector is missing, NaN or infinite"),
        ([1], [[1.0] * 7 + [None]], r"row 0: a number of the vector is missing, NaN or infinite"),
    ],
)
def test_problems_are_told_by_row(parts: Parts, tmp_path: Path, ids: list[Any], vectors: Any, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(init_tables, "_ROWS", 2)
    path = write(tmp_path / "v.parquet", ids, vectors)
    with pytest.raises(DataError, match=message):
        fill_tables([VectorFile("item_emb", path)], parts.sharded, parts.model)


def test_problems_of_zch_tables(parts: Parts, tmp_path: Path) -> None:
    file = VectorFile("user_emb", tmp_path / "v.parquet")
    write(file.path, list(range(40)), numbers(40))
    with pytest.raises(DataError, match=r"more ids than table 'user_emb' has rows for: 39 on rank 0 of 1; raise zch_size"):
        fill_tables([file], parts.sharded, parts.model)
    write(file.path, [3, 2**63 - 1], numbers(2))
    with pytest.raises(DataError, match=r"row 1: the id 9223372036854775807 can't have a row"):
        fill_tables([file], parts.sharded, parts.model)
    write(file.path, pa.array([3, 2**63], pa.uint64()), numbers(2))
    with pytest.raises(DataError, match=r"rows 0 to 1: an id is beyond 64-bit integers with a sign"):
        fill_tables([file], parts.sharded, parts.model)
    write(file.path, [5, 3, 4, 3, 5], numbers(5))
    with pytest.raises(DataError, match=r"row 3: the id 3 is there before"):
        fill_tables([file], parts.sharded, parts.model)
    assert zch_modules(parts.model)["user_emb"].rows_in_use == 0
    write(file.path, list(range(30)), numbers(30))
    fill_tables([file], parts.sharded, parts.model)
    write(file.path, list(range(20, 40)), numbers(20))
    with pytest.raises(DataError, match=r"rows for: 39 on rank 0 of 1, 30 of them taken before; raise zch_size"):
        fill_tables([file], parts.sharded, parts.model)


def test_ids_of_a_map_by_hashes_are_admitted_or_refused_with_their_number(make_config: MakeConfig, tmp_path: Path) -> None:
    hashed = FEATURES.replace("zch { zch_size: 40 eviction_interval: 2 lfu {} }", 'zch { zch_size: 40 kind: "mpzch" buckets: 2 ttl { hours: 2 } }')
    parts = build_parts(make_config(features=hashed))
    ids, vectors = [-1, 2**63 - 2, 0, -(2**63), *range(100, 106)], numbers(10)
    path = write(tmp_path / "v.parquet", ids, vectors)
    fill_tables([VectorFile("user_emb", path)], parts.sharded, parts.model)
    module = zch_modules(parts.model)["user_emb"]
    rows, known = module.find(torch.tensor(ids))
    assert bool(known.all())
    assert torch.equal(vectors_of(parts, "user_emb")[rows], torch.tensor(vectors))
    assert sorted(module.state_for_checkpoint()["counts"].tolist()) == [0] * 30 + [1] * 10
    write(path, list(range(60)), numbers(60))
    with pytest.raises(DataError, match=r"rows for where they may lie: 38 on rank 0 of 1, 10 of them taken before; raise zch_size"):
        fill_tables([VectorFile("user_emb", path)], parts.sharded, parts.model)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(st.integers(-8, 30), unique=True, max_size=12), min_size=2, max_size=4))
def test_known_ids_keep_their_rows_and_new_ones_get_free_ones(files: list[list[int]]) -> None:
    policy = LRU_EvictionPolicy()
    module = ZchModule(name="t", rows=50, interval=9, policy=policy, device=torch.device("cpu"))
    rows: dict[int, int] = {}
    for turn, ids in enumerate(files):
        state = module.state_for_checkpoint()
        state["iteration"].fill_(turn)
        module.load_state_from_checkpoint(state)
        ascending = sorted(ids)
        found = admit(module, torch.tensor(ascending, dtype=torch.int64))
        assert found is not None
        for raw, row in zip(ascending, found.tolist(), strict=True):
            assert rows.setdefault(raw, row) == row
    assert len(set(rows.values())) == len(rows) == module.rows_in_use
    assert module.rows_of(torch.tensor([*rows, 99])).tolist() == [*rows.values(), 49]
    state = module.state_for_checkpoint()
    met = {raw: turn for turn, ids in reversed(list(enumerate(files))) for raw in ids}
    assert state["raw_ids"][: len(rows)].tolist() == sorted(rows)
    assert state["last_access_iter"][: len(rows)].tolist() == [met[raw] for raw in sorted(rows)]
    assert (sorted(state["rows"].tolist()), state["rows"][-1].item()) == (list(range(50)), 49)


def test_vectors_go_over_those_that_ids_have(parts: Parts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(init_tables, "_ROWS", 3)
    file = VectorFile("user_emb", tmp_path / "v.parquet")
    first, second = [9, -3, 7, 40], [7, 1, -3, 2**62, 8]
    drawn = numbers(9)
    expected = dict(zip(first, drawn[:4], strict=True)) | dict(zip(second, drawn[4:], strict=True))
    for ids, vectors in ((first, drawn[:4]), (second, drawn[4:])):
        write(file.path, ids, vectors)
        fill_tables([file], parts.sharded, parts.model)
    module = zch_modules(parts.model)["user_emb"]
    assert module.rows_in_use == 7
    found = vectors_of(parts, "user_emb")[module.rows_of(torch.tensor(list(expected)))]
    assert torch.equal(found, torch.tensor(list(expected.values())))


def test_no_rows(parts: Parts, tmp_path: Path) -> None:
    before = vectors_of(parts, "item_emb").clone()
    empty = pa.array([], pa.int64())
    files = [VectorFile(table, write(tmp_path / f"{table}.parquet", empty, [])) for table in ("item_emb", "user_emb")]
    fill_tables(files, parts.sharded, parts.model)
    assert torch.equal(vectors_of(parts, "item_emb"), before)
    assert zch_modules(parts.model)["user_emb"].rows_in_use == 0


def test_files_are_looked_at_first(parts: Parts, tmp_path: Path) -> None:
    tables = parts.model.embedding_group.tables
    good = write(tmp_path / "good.parquet", [1], numbers(1))
    with pytest.raises(ConfigError) as error:
        check_vector_files([VectorFile("itm_emb", good), VectorFile("item_emb", good), VectorFile("item_emb", good)], tables)
    assert "'itm_emb'" in str(error.value)
    assert "table 'item_emb' is given 2 times" in str(error.value)
    cases = {
        "cannot be read as parquet": tmp_path / "nothing.parquet",
        "must have the columns 'id' and 'vector', found vector, ids": tmp_path / "ids.parquet",
        "column 'id' must hold whole numbers, found string": write(tmp_path / "text.parquet", ["a"], numbers(1)),
        "column 'vector' must hold lists of numbers, found double": write(tmp_path / "flat.parquet", [1], [1.0], pa.float64()),
        "the table has vectors of 8 numbers, found 4": write(tmp_path / "four.parquet", [1], [[1.0] * 4], pa.list_(pa.float32(), 4)),
    }
    pq.write_table(pq.read_table(good).rename_columns(["vector", "ids"]), tmp_path / "ids.parquet")
    for message, path in cases.items():
        with pytest.raises(DataError, match=message):
            check_vector_files([VectorFile("item_emb", path)], tables)
    assert parse_vector_file("a=b=c") == VectorFile("a", Path("b=c"))
    for text in ("a", "=b", "a="):
        with pytest.raises(ValueError, match="must be TABLE=FILE"):
            parse_vector_file(text)


def test_the_command(make_config: MakeConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, path = make_config(train="num_steps: 1"), write(tmp_path / "v.parquet", list(range(24)), numbers(24))
    arguments = ["train", "--config", config.source, "--output", str(tmp_path / "run"), "--init-table"]
    assert cli.main([*arguments, f"hour_emb={path}"]) == 0
    assert f"table 'hour_emb': vectors from {path}" in capsys.readouterr().out
    frozen = load_trained(tmp_path / "run").model.embedding_group.table_weights()["hour_emb"]
    assert torch.equal(frozen, torch.tensor(numbers(24)))
    with pytest.raises(SystemExit):
        cli.main([*arguments, "hour_emb"])
