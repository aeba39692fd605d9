"""Ranks that share an epoch: every row once, all ranks the same steps, each step's rows those of a single process with the joint batch."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberline.errors import DataError
from emberline.schema import FeatureKind, FeatureSpec, RawIdEncoder
from emberline.train.config.data_config import DataConfig, FileFormat, NegativeColumnsConfig
from emberline.train.data import DataPosition, DataReader
from emberline.train.data.share import Share
from emberline.train.features import BASE_DATA_GROUP, Feature

USER = Feature(name="user", spec=FeatureSpec(name="user", kind=FeatureKind.SPARSE, columns=("user",), encoder=RawIdEncoder()))
Steps = list[list[int]]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[FileFormat, Path]:
    """53 rows in three files, one of them without rows and one with ids of another type: row r has user r."""
    folder = tmp_path_factory.mktemp("rows")
    parts = {"a": (range(0, 20), pa.int64()), "b": (range(20, 20), pa.int64()), "c": (range(20, 53), pa.int32())}
    found = {kind: folder / kind.name for kind in (FileFormat.PARQUET, FileFormat.CSV)}
    for path in found.values():
        path.mkdir()
    for name, (rows, kind) in parts.items():
        table = pa.table({"user": pa.array(rows, kind), "y": pa.array([row % 2 for row in rows], pa.int64())})
        pq.write_table(table, found[FileFormat.PARQUET] / f"{name}.parquet", row_group_size=7)
        (found[FileFormat.CSV] / f"{name}.csv").write_text("user,y\n" + "".join(f"{row},{row % 2}\n" for row in rows))
    return found


def read(path: Path, kind: FileFormat, **options: Any) -> Steps:
    """The users of each step of one epoch."""
    settings = {name: options.pop(name) for name in ("shuffle", "shuffle_buffer_rows", "drop_remainder") if name in options}
    config = DataConfig(label_fields=("y",), file_format=kind, with_header=True, **settings)
    batches = list(DataReader(config, [USER], path, **options))
    users = [batch.sparse_features[BASE_DATA_GROUP]["user"].values().tolist() for batch in batches]
    assert [batch.labels["y"].tolist() for batch in batches] == [[user % 2 for user in step] for step in users]
    return users


@given(
    kind=st.sampled_from([FileFormat.PARQUET, FileFormat.CSV]),
    world_size=st.integers(1, 5),
    batch_size=st.integers(1, 60),
    shuffle=st.booleans(),
    buffer=st.sampled_from([1, 5, 16, 100]),
    drop=st.booleans(),
    skipped=st.integers(0, 53),
)
def test_every_row_once_in_one_order(
    folders: dict[FileFormat, Path], kind: FileFormat, world_size: int, batch_size: int, shuffle: bool, buffer: int, drop: bool, skipped: int
) -> None:
    options: dict[str, Any] = {"shuffle": shuffle, "shuffle_buffer_rows": buffer, "drop_remainder": drop, "seed": 3}
    position = DataPosition(1, skipped)
    together = read(folders[kind], kind, batch_size=batch_size * world_size, position=position, **options)
    ranks = [
        read(folders[kind], kind, batch_size=batch_size, position=position, rank=rank, world_size=world_size, **options) for rank in range(world_size)
    ]
    assert [len(rank) for rank in ranks] == [len(together)] * world_size
    for number, step in enumerate(together):
        parts = [rank[number] for rank in ranks]
        assert list(itertools.chain.from_iterable(parts)) == step
        sizes = [len(part) for part in parts]
        assert max(sizes) - min(sizes) <= (len(step) < batch_size * world_size)
    rows = [row for step in together for row in step]
    left = 53 - skipped
    assert len(rows) == len(set(rows)) == (left // (batch_size * world_size) * batch_size * world_size if drop else left)
    whole = read(folders[kind], kind, batch_size=1, position=DataPosition(1), **(options | {"drop_remainder": False}))
    assert rows == [row for step in whole for row in step][skipped : skipped + len(rows)]  # one stream, whoever reads it


@pytest.mark.parametrize("kind", [FileFormat.PARQUET, FileFormat.CSV])
def test_an_epoch_begun_by_two_ranks_is_ended_by_three(folders: dict[FileFormat, Path], kind: FileFormat) -> None:
    config = DataConfig(label_fields=("y",), file_format=kind, with_header=True, shuffle=True, shuffle_buffer_rows=11)
    seen: list[int] = []
    position = DataPosition()
    for world_size, num_steps in ((2, 3), (3, 100)):
        readers = [
            DataReader(config, [USER], folders[kind], batch_size=4, position=position, rank=rank, world_size=world_size) for rank in range(world_size)
        ]
        for batches in itertools.islice(zip(*readers, strict=True), num_steps):
            seen += [user for batch in batches for user in batch.sparse_features[BASE_DATA_GROUP]["user"].values().tolist()]
        assert len({reader.position for reader in readers}) == 1
        position = readers[0].position
    assert position == DataPosition(1, 0)
    assert sorted(seen) == list(range(53))


def test_a_rank_without_rows_has_a_batch(folders: dict[FileFormat, Path]) -> None:
    config = DataConfig(label_fields=("y",))
    for rank, rows in enumerate((0, 0, 1)):
        reader = DataReader(config, [USER], folders[FileFormat.PARQUET], batch_size=26, position=DataPosition(0, 52), rank=rank, world_size=3)
        (batch,) = reader
        kjt = batch.sparse_features[BASE_DATA_GROUP]
        assert (batch.num_rows, kjt.stride(), kjt.values().numel(), batch.labels["y"].numel()) == (rows, rows, rows, rows)
        assert reader.num_batches == 1


def test_others_rows_are_not_encoded_and_errors_name_the_row_of_the_file(tmp_path: Path) -> None:
    labels: list[int | None] = [None if row == 9 else 1 for row in range(16)]
    pq.write_table(pa.table({"user": list(range(16)), "y": pa.array(labels, pa.int64())}), tmp_path / "a.parquet", row_group_size=6)
    for shuffle in (False, True):
        config = DataConfig(label_fields=("y",), shuffle=shuffle, shuffle_buffer_rows=16)
        problems = []
        for rank in range(4):
            reader = DataReader(config, [USER], tmp_path, batch_size=2, rank=rank, world_size=4)
            try:
                assert len(list(reader)) == 2
            except DataError as error:
                problems.append(str(error))
        assert problems == [f"{tmp_path}/a.parquet, row 9: column 'y': the label is missing"]


def test_negatives_stay_with_their_rows(tmp_path: Path) -> None:
    lists = [[100 + 2 * row, 101 + 2 * row] for row in range(7)]
    pq.write_table(pa.table({"item": list(range(7)), "others": lists, "y": [1] * 7}), tmp_path / "a.parquet", row_group_size=3)
    spec = FeatureSpec(name="item", kind=FeatureKind.SPARSE, columns=("item",), encoder=RawIdEncoder())
    features = [Feature(name="item", spec=spec, data_group="__NEG__")]
    config = DataConfig(label_fields=("y",), negative_columns=NegativeColumnsConfig(columns=(("item", "others"),), num_negatives=2), shuffle=True)
    found = []
    for rank in range(3):
        for batch in DataReader(config, features, tmp_path, batch_size=2, rank=rank, world_size=3):
            values = batch.sparse_features["__NEG__"]["item"].values().tolist()
            items = values[: batch.num_rows]
            assert values[batch.num_rows :] == [number for item in items for number in lists[item]]
            found += items
    assert sorted(found) == list(range(7))


@given(batch_size=st.integers(1, 7), world_size=st.integers(1, 5), start=st.integers(0, 9), rows=st.integers(0, 60), cuts=st.sets(st.integers(0, 69)))
def test_shares_do_not_depend_on_how_the_rows_come(batch_size: int, world_size: int, start: int, rows: int, cuts: set[int]) -> None:
    total = start + rows
    owner: dict[int, int] = {}
    for step in range(start, total, batch_size * world_size):
        parts = np.array_split(np.arange(step, min(step + batch_size * world_size, total)), world_size)
        sizes = [len(part) for part in parts]
        for rank in range(world_size):
            share = Share(batch_size, rank, world_size, start, total)
            places = share.places(step, min(step + batch_size * world_size, total))
            own = range(sum(sizes)) if places is None else places.tolist()
            assert len(own) in (min(sizes), max(sizes))
            for place in own:
                assert owner.setdefault(step + place, rank) == rank
    assert sorted(owner) == list(range(start, total))
    for rank in range(world_size):
        share = Share(batch_size, rank, world_size, start, total)
        borders = sorted({start, total, *(cut for cut in cuts if start < cut < total)})
        found = [first + place for first, stop in itertools.pairwise(borders) for place in _all(share.places(first, stop), stop - first)]
        assert found == [row for row in range(start, total) if owner[row] == rank]


def _all(places: Any, count: int) -> list[int]:
    return list(range(count)) if places is None else places.tolist()


def test_rows_are_known_only_when_their_step_is() -> None:
    share = Share(2, 0, 3, 4, None)
    assert [share.is_known(stop, 16) for stop in (5, 10, 15, 16, 17)] == [True, True, True, True, False]
    assert not share.is_known(15, 15)
    assert (share.num_whole_steps, share.num_last_rows) == (None, 0)
    share.total = 15
    assert share.is_known(15, 15)
    assert (share.num_whole_steps, share.num_last_rows) == (1, 5)
