import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from emberline.errors import DataError
from emberline.schema import BucketEncoder, FeatureKind, FeatureSpec, NumericEncoder
from emberline.train.config.data_config import DataConfig
from emberline.train.data import Batch, DataPosition, DataReader
from emberline.train.features import BASE_DATA_GROUP, Feature

Write = Callable[..., Path]
CONFIG = DataConfig(batch_size=6, label_fields=("label",), sample_weight_fields=("weight",))


def _users(batch: Batch) -> list[int]:
    """The rows of a batch by their user id, after checking that all else of each row came along."""
    kjt = batch.sparse_features[BASE_DATA_GROUP]
    users: list[int] = kjt["user"].values().tolist()
    tags = [bag.tolist() for bag in kjt["tags"].values().split(kjt["tags"].lengths().tolist())]
    assert tags == [[user * 10 + number for number in range(user % 3)] for user in users]
    assert batch.dense_features[BASE_DATA_GROUP]["x"][:, 0].tolist() == [user / 2 for user in users]
    assert batch.labels["label"].tolist() == [user % 2 for user in users]
    assert batch.sample_weights is not None
    assert batch.sample_weights.tolist() == [user + 0.5 for user in users]
    assert batch.num_rows == len(users)
    return users


def _epoch(reader: DataReader) -> list[list[int]]:
    return [_users(batch) for batch in reader]


@pytest.fixture
def files(write: Write) -> Path:
    """43 rows: 20 and 23 in files of several row groups, and a file without rows between them."""
    write("a.parquet", 0, 20)
    write("b.parquet", 20, 0)
    return write("c.parquet", 20, 23, 5).parent


def test_file_order_across_row_groups_and_files(files: Path, features: list[Feature]) -> None:
    reader = DataReader(CONFIG, features, files)
    assert _epoch(reader) == [list(range(start, min(start + 6, 43))) for start in range(0, 43, 6)]
    assert (reader.num_rows, reader.num_batches, reader.position) == (43, 8, DataPosition(1, 0))
    assert _epoch(reader)[0] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("batch_size", [1, 5, 7, 20, 43, 44, 10_000])
def test_any_batch_size(files: Path, features: list[Feature], batch_size: int) -> None:
    for shuffle in (False, True):
        epoch = _epoch(DataReader(CONFIG, features, files, batch_size=batch_size, shuffle=shuffle, seed=1))
        assert [len(batch) for batch in epoch] == [batch_size] * (43 // batch_size) + [43 % batch_size] * (43 % batch_size > 0)
        assert sorted(itertools.chain.from_iterable(epoch)) == list(range(43))


def test_drop_remainder(files: Path, features: list[Feature]) -> None:
    reader = DataReader(CONFIG, features, files, drop_remainder=True)
    assert [len(batch) for batch in _epoch(reader)] == [6] * 7
    assert reader.num_batches == 7


def test_types(files: Path, features: list[Feature]) -> None:
    batch = next(iter(DataReader(CONFIG, features, files)))
    kjt = batch.sparse_features[BASE_DATA_GROUP]
    assert (kjt.keys(), kjt.values().dtype, kjt.lengths().dtype) == (["user", "tags"], torch.int64, torch.int32)
    assert batch.labels["label"].dtype == torch.int64


@pytest.mark.parametrize("buffer_rows", [1, 4, 10, 43, 1000])
def test_shuffling_depends_on_seed_and_epoch_alone(files: Path, features: list[Feature], buffer_rows: int) -> None:
    config = DataConfig(batch_size=6, label_fields=("label",), sample_weight_fields=("weight",), shuffle=True, shuffle_buffer_rows=buffer_rows)
    one, same, other = (DataReader(config, features, files, seed=seed) for seed in (5, 5, 6))
    epochs = [_epoch(one), _epoch(one), _epoch(one)]
    assert [_epoch(same), _epoch(same), _epoch(same)] == epochs
    assert _epoch(other) != epochs[0]
    assert epochs[0] != epochs[1] != epochs[2]
    for epoch in epochs:
        rows = list(itertools.chain.from_iterable(epoch))
        assert rows != sorted(rows)
        assert sorted(rows) == list(range(43))


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("drop_remainder", [False, True])
def test_resuming_goes_on_as_if_never_stopped(files: Path, features: list[Feature], shuffle: bool, drop_remainder: bool) -> None:
    config = DataConfig(batch_size=5, label_fields=("label",), sample_weight_fields=("weight",), shuffle_buffer_rows=12)

    def reader(position: DataPosition | None = None) -> DataReader:
        return DataReader(config, features, files, seed=9, shuffle=shuffle, drop_remainder=drop_remainder, position=position)

    def rest(reader: DataReader) -> list[tuple[DataPosition, list[int]]]:
        seen = []
        while reader.position.epoch < 3:
            seen += [(reader.position, _users(batch)) for batch in reader]
        return seen

    everything = rest(reader())
    assert len(everything) == (24 if drop_remainder else 27)
    for done, (position, _) in enumerate(everything, 1):
        assert rest(reader(DataPosition.from_dict(position.to_dict()))) == everything[done:]


def test_leaving_a_loop_and_going_on(files: Path, features: list[Feature]) -> None:
    reader = DataReader(CONFIG, features, files)
    for batch in reader:
        if 12 in _users(batch):
            break
    assert reader.position == DataPosition(0, 18)
    assert _epoch(reader)[0] == [18, 19, 20, 21, 22, 23]
    reader.seek(DataPosition(0, 42))
    assert _epoch(reader) == [[42]]


def test_no_thread_is_left(files: Path, features: list[Feature]) -> None:
    reader = DataReader(CONFIG, features, files)
    for _ in range(3):
        batches = iter(reader)
        next(batches)
        del batches
        _epoch(reader)
    assert [thread.name for thread in threading.enumerate() if thread.name == "emberline-prefetch"] == []


def test_a_position_beyond_the_data(files: Path, features: list[Feature]) -> None:
    assert _epoch(DataReader(CONFIG, features, files, position=DataPosition(0, 43))) == []
    with pytest.raises(DataError, match="position 44 lies beyond the 43 rows"):
        _epoch(DataReader(CONFIG, features, files, position=DataPosition(0, 44)))


def test_skipped_rows_are_not_encoded(write: Write, features: list[Feature], tmp_path: Path) -> None:
    write("a.parquet", 0, 20)
    table = pq.read_table(tmp_path / "a.parquet")
    labels = pa.array([None, *table["label"].to_pylist()[1:]], pa.int32())
    pq.write_table(table.set_column(3, "label", labels), tmp_path / "a.parquet", row_group_size=7)
    assert _epoch(DataReader(CONFIG, features, tmp_path, position=DataPosition(0, 6)))[0] == [6, 7, 8, 9, 10, 11]
    with pytest.raises(DataError, match="row 0"):
        _epoch(DataReader(CONFIG, features, tmp_path))


def test_no_rows_at_all(write: Write, features: list[Feature]) -> None:
    reader = DataReader(CONFIG, features, write("a.parquet", 0, 0))
    assert (_epoch(reader), reader.num_rows, reader.num_batches) == ([], 0, 0)


def test_files_of_other_types_mix(write: Write, features: list[Feature], tmp_path: Path) -> None:
    write("a.parquet", 0, 8)
    table = pq.read_table(write("b.parquet", 8, 8))
    users = pa.array([str(user) for user in table["user"].to_pylist()]).dictionary_encode()
    other = (
        table.set_column(0, "user", users).set_column(1, "x", table["x"].cast(pa.float32())).set_column(3, "label", table["label"].cast(pa.float64()))
    )
    pq.write_table(other.select(["weight", "label", "tags", "x", "user"]), tmp_path / "b.parquet")
    for shuffle in (False, True):
        epoch = _epoch(DataReader(CONFIG, features, tmp_path, shuffle=shuffle))
        assert sorted(itertools.chain.from_iterable(epoch)) == list(range(16))


def test_without_labels(files: Path, features: list[Feature]) -> None:
    batch = next(iter(DataReader(CONFIG, features, files, with_labels=False)))
    assert (batch.labels, batch.sample_weights) == ({}, None)


def _replaced(path: Path, column: str, row: int, value: object) -> None:
    table = pq.read_table(path)
    values = table[column].to_pylist()
    values[row] = value
    index = table.schema.get_field_index(column)
    pq.write_table(table.set_column(index, column, pa.array(values)), path, row_group_size=7)


@pytest.mark.parametrize(
    ("column", "value", "problem"),
    [
        ("label", None, r"a\.parquet, row 16: column 'label': the label is missing"),
        ("weight", -1.0, r"a\.parquet, row 16: column 'weight': sample weight -1.0 is negative"),
        ("x", float("inf"), r"a\.parquet, row 16: feature 'x': inf is not a finite float32"),
    ],
)
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_bad_value_is_named_with_file_and_row(
    write: Write, features: list[Feature], column: str, value: object, problem: str, shuffle: bool
) -> None:
    path = write("a.parquet", 0, 20)
    _replaced(path, column, 16, value)
    with pytest.raises(DataError, match=problem):
        _epoch(DataReader(CONFIG, features, path, shuffle=shuffle))


def test_an_id_out_of_range_comes_after_the_batches_before_it(write: Write) -> None:
    path = write("a.parquet", 0, 20)
    spec = FeatureSpec(name="user", kind=FeatureKind.SPARSE, columns=("user",), encoder=BucketEncoder(rows=15))
    reader = DataReader(DataConfig(batch_size=5), [Feature(name="user", spec=spec)], path, batch_size=5)
    with pytest.raises(DataError, match=r"a\.parquet, row 15: feature 'user': id 15 is outside \[0, 15\)"):
        list(reader)


def test_files_that_cannot_be_read(write: Write, features: list[Feature], tmp_path: Path) -> None:
    path = write("a.parquet", 0, 20)
    whole = path.read_bytes()
    for content in (b"", b"PAR1", whole[:-9], b"user,x\n1,2\n"):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"a\.parquet cannot be read as parquet"):
            DataReader(CONFIG, features, path)
    middle = bytearray(whole)
    middle[4:200] = bytes(196)
    path.write_bytes(bytes(middle))
    with pytest.raises(DataError, match=r"a\.parquet is damaged in row group 0"):
        _epoch(DataReader(CONFIG, features, path))
    with pytest.raises(DataError, match="does not exist"):
        DataReader(CONFIG, features, tmp_path / "none.parquet")


def test_a_missing_column_is_named_with_its_file(write: Write, features: list[Feature]) -> None:
    write("a.parquet", 0, 5)
    path = write("b.parquet", 5, 5)
    table = pq.read_table(path)
    pq.write_table(table.rename_columns(["usr", "x", "tags", "label", "weight"]), path)
    with pytest.raises(DataError, match=r"b\.parquet has no column 'user' \(is 'usr' meant\?\); there are: usr, x, tags, label, weight"):
        DataReader(CONFIG, features, path.parent)


def test_column_names_with_dots(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a.b": [1, 2], "a": [3, 4]}), tmp_path / "a.parquet")
    spec = FeatureSpec(name="f", kind=FeatureKind.SPARSE, columns=("a.b",), encoder=BucketEncoder(rows=5))
    batch = next(iter(DataReader(DataConfig(), [Feature(name="f", spec=spec)], tmp_path)))
    assert batch.sparse_features[BASE_DATA_GROUP].values().tolist() == [1, 2]


@pytest.mark.parametrize(("shuffle", "most_rows"), [(False, 6 * 100), (True, 6 * 100 + 2 * 500)])
def test_only_a_little_of_a_large_file_is_read_ahead(
    write: Write, features: list[Feature], monkeypatch: pytest.MonkeyPatch, shuffle: bool, most_rows: int
) -> None:
    path = write("a.parquet", 0, 20_000, 100)
    read_rows = 0
    whole = pq.ParquetFile.iter_batches

    def counted(self: Any, **options: Any) -> Any:
        nonlocal read_rows
        for batch in whole(self, **options):
            read_rows += batch.num_rows
            yield batch

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", counted)
    config = DataConfig(batch_size=100, label_fields=("label",), sample_weight_fields=("weight",), shuffle=shuffle, shuffle_buffer_rows=500)
    for taken, batch in enumerate(DataReader(config, features, path), 1):
        assert batch.num_rows == 100
        assert read_rows <= taken * 100 + most_rows
    assert read_rows == 20_000


def test_arrow_memory_stays_bounded(write: Write, features: list[Feature]) -> None:
    path = write("a.parquet", 0, 200_000, 2_000)
    before, most = pa.total_allocated_bytes(), 0
    for batch in DataReader(CONFIG, features, path, batch_size=1000):
        assert batch.num_rows == 1000
        most = max(most, pa.total_allocated_bytes() - before)
    whole = pq.read_table(path).nbytes
    assert most < whole / 3


def _sequence_features() -> list[Feature]:
    """Sequences of one id a step, of any number of ids, and of two numbers."""
    common: dict[str, Any] = {"sequence": True, "encoded": True}
    ids = BucketEncoder(rows=1000)
    specs = [
        FeatureSpec(name="s", kind=FeatureKind.SPARSE, columns=("s",), encoder=ids, value_dim=1, **common),
        FeatureSpec(name="m", kind=FeatureKind.SPARSE, columns=("m",), encoder=ids, **common),
        FeatureSpec(name="n", kind=FeatureKind.DENSE, columns=("n",), encoder=NumericEncoder(), value_dim=2, **common),
    ]
    return [Feature(name=spec.name, spec=spec) for spec in specs]


def test_sequences_come_along_with_their_rows(tmp_path: Path) -> None:
    rows = range(20)
    table = {
        "s": pa.array([[row, row + 100][: row % 3] for row in rows], pa.list_(pa.int64())),
        "m": pa.array([[[row] * step for step in range(row % 4)] for row in rows], pa.list_(pa.list_(pa.int64()))),
        "n": pa.array([[[row, -1]] * (row % 2) for row in rows], pa.list_(pa.list_(pa.float32()))),
        "label": pa.array(rows, pa.int64()),
    }
    pq.write_table(pa.table(table), tmp_path / "a.parquet", row_group_size=7)
    config = DataConfig(batch_size=6, label_fields=("label",))
    seen = []
    for batch in DataReader(config, _sequence_features(), tmp_path / "a.parquet", shuffle=True, seed=3):
        labels = batch.labels["label"].tolist()
        kjt, sizes, steps = batch.sparse_features[BASE_DATA_GROUP], batch.sequence_mulval_lengths[BASE_DATA_GROUP], batch.sequence_dense_features["n"]
        assert [bag.tolist() for bag in kjt["s"].values().split(kjt["s"].lengths().tolist())] == [[row, row + 100][: row % 3] for row in labels]
        assert kjt["m"].values().tolist() == [row for row in labels for step in range(row % 4) for _ in range(step)]
        assert sizes["m"].values().tolist() == [step for row in labels for step in range(row % 4)]
        assert sizes["m"].lengths().tolist() == [row % 4 for row in labels]
        assert steps.values().tolist() == [[row, -1] for row in labels if row % 2]
        assert steps.lengths().tolist() == [row % 2 for row in labels]
        seen += labels
    assert sorted(seen) == list(rows)
    assert seen != list(rows)
