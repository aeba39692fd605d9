"""Negatives that are drawn: how often, never the batch's own, and the same ones whenever a run comes to a place."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emberline.errors import DataError
from emberline.train.config import parse_config
from emberline.train.config.data_config import DataConfig
from emberline.train.data import Batch, DataPosition, DataReader
from emberline.train.data.order import negatives_generator
from emberline.train.data.sampler import Items, create_sampler, open_items
from emberline.train.features import Feature
from emberline.train.models import features_of

ITEMS, ROWS, SAMPLES = 12, 23, 5
FEATURES = """
feature_configs { id_feature { feature_name: "user" expression: "user:user" embedding_dim: 4 num_buckets: 100 } }
feature_configs { id_feature { feature_name: "item" expression: "item:item" embedding_dim: 4 num_buckets: 1000 } }
feature_configs { id_feature { feature_name: "tags" expression: "item:tags" embedding_dim: 4 num_buckets: 1000 } }
feature_configs { raw_feature { feature_name: "price" expression: "item:price" } }
"""


def make_config(folder: Path, id_field: str = "item", data: str = "") -> tuple[DataConfig, list[Feature]]:
    text = f"""data_config {{ fg_mode: FG_NORMAL label_fields: "label" {data} negative_sampler {{
      input_path: "{folder}/items" num_sample: {SAMPLES} num_eval_sample: 3 attr_fields: ["item", "tags", "price"]
      item_id_field: "{id_field}" weight_field: "weight"
    }} }} {FEATURES}"""
    read = parse_config(text)
    return read.data, features_of(read)


def make_items(ids: Sequence[int] = tuple(range(ITEMS)), **columns: Sequence[Any]) -> pa.Table:
    """Item i has i % 3 tags, the price i / 4 and the weight i % 4."""
    own: dict[str, Any] = {
        "item": ids,
        "tags": pa.array([[10 * one + place for place in range(one % 3)] for one in ids], pa.list_(pa.int64())),
        "price": [one / 4 for one in ids],
        "weight": [float(one % 4) for one in ids],
    }
    return pa.table({**own, **columns})


def make_rows() -> pa.Table:
    ids = [row % ITEMS for row in range(ROWS)]
    return make_items(ids).append_column("user", pa.array(range(ROWS))).append_column("label", pa.array([1] * ROWS))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "items").mkdir()
    pq.write_table(make_items(), tmp_path / "items/all.parquet", row_group_size=5)
    pq.write_table(make_rows(), tmp_path / "rows.parquet", row_group_size=7)
    return tmp_path


def items_of(weights: Sequence[float], folder: Path) -> Items:
    pq.write_table(make_items(list(range(len(weights))), weight=weights), folder / "items/all.parquet")
    data, features = make_config(folder)
    items = open_items(data, features)
    assert items is not None
    return items


def counts_of(items: Items, own: Sequence[int], count: int, seed: int = 0) -> Mapping[int, int]:
    drawn = items.draw(np.array(own, np.int64), count, np.random.default_rng(seed))
    assert drawn.num_rows == count
    return Counter(drawn.sparse["item"].values.tolist())


@pytest.mark.parametrize(
    ("weights", "own"),
    [
        ([1.0] * 10, []),
        ([1.0] * 10, [3, 3, 7]),
        ([1.0, 2.0, 3.0, 4.0], [0]),
        ([1.0, 2.0, 0.0, 3.0, 40.0, 0.0], [4]),  # the batch has most of the weight
        ([1.0, 2.0, 0.0, 3.0, 40.0, 0.0], [1, 2, 77]),
        ([1e30, 1.0, 0.0, 3.0], [0]),  # which hides all others' in a sum
        ([0.0, 0.0, 1e-30, 3e-30], []),
    ],
)
def test_items_come_as_often_as_their_weights_say(folder: Path, weights: list[float], own: list[int]) -> None:
    draws = 40_000
    found = counts_of(items_of(weights, folder), own, draws)
    left = [0.0 if item in own else weight for item, weight in enumerate(weights)]
    for item, weight in enumerate(left):
        share = weight / math.fsum(left)
        assert abs(found.get(item, 0) - draws * share) <= 5 * math.sqrt(draws * share * (1 - share)), item


def test_draws_are_independent(folder: Path) -> None:
    """Pairs of successive draws come as often as their items' shares multiplied."""
    draws, weights = 60_000, [1.0, 2.0, 3.0]
    drawn = items_of(weights, folder).draw(np.empty(0, np.int64), draws, np.random.default_rng(1)).sparse["item"].values.reshape(-1, 2)
    pairs = Counter(map(tuple, drawn.tolist()))
    for one in range(3):
        for other in range(3):
            share = weights[one] * weights[other] / 36
            assert abs(pairs[one, other] - draws / 2 * share) <= 5 * math.sqrt(draws / 2 * share * (1 - share))


@settings(max_examples=60, deadline=None)
@given(
    weights=st.lists(st.sampled_from([0.0, 1e-20, 0.5, 1.0, 7.0, 1e20]), min_size=1, max_size=8),
    own=st.lists(st.integers(-3, 9), max_size=9),
    count=st.integers(0, 30),
    seed=st.integers(0, 99),
)
def test_only_what_may_be_drawn_is(tmp_path_factory: pytest.TempPathFactory, weights: list[float], own: list[int], count: int, seed: int) -> None:
    folder = tmp_path_factory.mktemp("items")
    (folder / "items").mkdir()
    allowed = {item for item, weight in enumerate(weights) if weight > 0}
    if not allowed:
        with pytest.raises(DataError, match=r"no item can be drawn: the weights in 'weight' are all 0"):
            items_of(weights, folder)
        return
    items = items_of(weights, folder)
    assert len(items) == len(allowed)
    if count and not allowed - set(own):
        with pytest.raises(DataError, match=rf"a batch has all {len(allowed)} items that can be drawn, .* use a smaller batch_size"):
            counts_of(items, own, count, seed)
        return
    assert set(counts_of(items, own, count, seed)) <= allowed - set(own)


def test_all_features_of_an_item_come_along(folder: Path) -> None:
    drawn = items_of([1.0] * ITEMS, folder).draw(np.array([2]), 50, np.random.default_rng(3))
    items = drawn.sparse["item"].values.tolist()
    tags = np.split(drawn.sparse["tags"].values, drawn.sparse["tags"].lengths.cumsum()[:-1])
    assert [part.tolist() for part in tags] == [[10 * item + place for place in range(item % 3)] for item in items]
    assert drawn.dense["price"][:, 0].tolist() == [item / 4 for item in items]
    assert set(drawn.sparse) == {"item", "tags"}


# --- read with rows ---------------------------------------------------------------------------------------------------


def open_reader(folder: Path, config: tuple[DataConfig, list[Feature]] | None = None, *, evaluating: bool = False, **more: Any) -> DataReader:
    data, features = config or make_config(folder)
    sampler = create_sampler(data, open_items(data, features), evaluating=evaluating)
    return DataReader(data, features, folder / "rows.parquet", sampler=sampler, **{"batch_size": 4, "seed": 7, **more})


def split(batch: Batch) -> tuple[list[int], list[int], list[int]]:
    """Users, their items and the drawn items, after a look at all else."""
    users: list[int] = batch.sparse_features["__BASE__"]["user"].values().tolist()
    group = batch.sparse_features["__NEG__"]
    items: list[int] = group["item"].values().tolist()
    assert group.stride() == len(items)
    assert items[: len(users)] == [user % ITEMS for user in users]
    tags = [part.tolist() for part in group["tags"].values().split(group["tags"].lengths().tolist())]
    assert tags == [[10 * item + place for place in range(item % 3)] for item in items]
    assert batch.dense_features["__NEG__"]["price"][:, 0].tolist() == [item / 4 for item in items]
    assert batch.num_rows == len(users) == len(batch.labels["label"])
    return users, items[: len(users)], items[len(users) :]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(("evaluating", "samples"), [(False, SAMPLES), (True, 3)])
def test_batches_have_negatives_that_are_not_their_own(folder: Path, shuffle: bool, evaluating: bool, samples: int) -> None:
    reader = open_reader(folder, shuffle=shuffle, evaluating=evaluating)
    seen: set[int] = set()
    for batch in [*reader, *reader, *reader]:
        _, own, drawn = split(batch)
        assert len(drawn) == samples
        assert not set(own) & set(drawn)
        assert all(item % 4 for item in drawn)
        seen |= set(drawn)
    assert seen == {item for item in range(ITEMS) if item % 4}


def test_each_batch_is_drawn_by_the_generator_of_its_place(folder: Path) -> None:
    data, features = make_config(folder)
    items = open_items(data, features)
    assert items is not None
    reader = open_reader(folder)
    for epoch in range(2):
        for number, batch in enumerate(reader):
            _, own, drawn = split(batch)
            generator = negatives_generator(7, DataPosition(epoch, number * 4), 0)
            assert drawn == items.draw(np.array(own), SAMPLES, generator).sparse["item"].values.tolist()


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_reader_that_goes_on_draws_what_one_that_never_stopped_draws(folder: Path, shuffle: bool) -> None:
    whole = open_reader(folder, shuffle=shuffle)
    batches = [(whole.position, split(batch)) for _ in range(2) for batch in whole]
    assert len({tuple(drawn) for _, (_, _, drawn) in batches}) > len(batches) // 2
    for number, (position, _) in enumerate(batches[:-1], 1):
        rest = [split(batch) for batch in open_reader(folder, shuffle=shuffle, position=position)]
        assert rest == [found for after, found in batches[number:] if after.epoch == position.epoch][: len(rest)]
        assert rest or position.rows == ROWS
    other = [split(batch)[2] for batch in open_reader(folder, shuffle=shuffle, seed=8)]
    assert other != [drawn for _, (_, _, drawn) in batches[: len(other)]]


def test_ranks_draw_for_themselves(folder: Path) -> None:
    """23 rows, steps of 8: the last has 7 rows, 3 and 4 of them."""
    ranks = [[split(batch) for batch in open_reader(folder, rank=rank, world_size=2)] for rank in range(2)]
    assert [[len(users) for users, _, _ in found] for found in ranks] == [[4, 4, 3], [4, 4, 4]]
    for one, other in zip(*ranks, strict=True):
        assert one[2] != other[2]
    assert ranks[0] == [split(batch) for batch in open_reader(folder, rank=0, world_size=2)]


def test_a_rank_without_rows_draws_nothing(folder: Path) -> None:
    found = [split(batch) for batch in open_reader(folder, rank=0, world_size=2, batch_size=11)]
    assert [(len(users), len(drawn)) for users, _, drawn in found] == [(11, SAMPLES), (0, 0)]


def test_rows_of_unknown_items_and_of_none_are_fine(folder: Path) -> None:
    ids = pa.array([None if row % 5 == 0 else 500 + row for row in range(ROWS)])
    rows = make_rows()
    pq.write_table(rows.set_column(rows.schema.get_field_index("item"), "item", ids), folder / "rows.parquet")
    for batch in open_reader(folder):
        assert batch.sparse_features["__NEG__"].stride() == batch.num_rows + SAMPLES


def test_ids_may_be_texts_here_and_numbers_there(folder: Path) -> None:
    """The items' ids are a column of their own, as text; the rows' are numbers."""
    items = make_items().append_column("key", pa.array([str(item) for item in range(ITEMS)]))
    pq.write_table(items, folder / "items/all.parquet")
    pq.write_table(make_rows().append_column("key", pa.array([row % ITEMS for row in range(ROWS)])), folder / "rows.parquet")
    data, features = make_config(folder, id_field="key")
    text = [split(batch) for batch in open_reader(folder, (data, features))]
    pq.write_table(make_items().append_column("key", pa.array(range(ITEMS))), folder / "items/all.parquet")
    assert text == [split(batch) for batch in open_reader(folder, (data, features))]
    assert all(not set(own) & set(drawn) for _, own, drawn in text)


def test_items_in_csv_files_are_those_in_parquet(folder: Path) -> None:
    wanted = [split(batch)[2] for batch in open_reader(folder)]
    (folder / "items/all.parquet").unlink()
    for name, table in (("items/all.csv", make_items()), ("rows.csv", make_rows())):
        place = table.schema.get_field_index("tags")
        joined = table.set_column(place, "tags", pa.array(["\x1d".join(map(str, tags)) for tags in table["tags"].to_pylist()]))
        pa.csv.write_csv(joined, folder / name)
    data, features = make_config(folder, data="dataset_type: CsvDataset with_header: true")
    sampler = create_sampler(data, open_items(data, features))
    reader = DataReader(data, features, folder / "rows.csv", batch_size=4, seed=7, sampler=sampler)
    assert [split(batch)[2] for batch in reader] == wanted


def test_the_order_of_the_items_does_not_matter(folder: Path) -> None:
    wanted = [split(batch) for batch in open_reader(folder)]
    order = np.random.default_rng(0).permutation(ITEMS)
    (folder / "items/all.parquet").unlink()
    pq.write_table(make_items().take(order[:5]), folder / "items/b.parquet")
    pq.write_table(make_items().take(order[5:]), folder / "items/a.parquet")
    assert [split(batch) for batch in open_reader(folder)] == wanted


Change = Callable[[pa.Table], pa.Table]


def with_column(name: str, values: Sequence[Any] | pa.Array) -> Change:
    return lambda table: table.set_column(table.schema.get_field_index(name), name, pa.array(values))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table.drop_columns(["price"]), r"all\.parquet has no column 'price'"),
        (lambda table: table.rename_columns(["item_id", "tags", "price", "weight"]), r"no column 'item' \(is 'item_id' meant\?\)"),
        (lambda table: table.drop_columns(["weight"]), r"all\.parquet has no column 'weight'"),
        (lambda table: table.slice(0, 0), "items has no items to draw from"),
        (with_column("item", [*range(9), None, 10, 11]), r"all\.parquet, row 9: an item has one 'item', but found none"),
        (with_column("item", [[one] if one % 2 else [one, 3] for one in range(ITEMS)]), r"row 0: an item has one 'item', but found 2 values"),
        (
            with_column("item", [*range(7), 3, 8, 9, 10, 11]),
            r"all\.parquet, row 7: 'item' is that of .*all\.parquet, row 3 already; list each item once",
        ),
        (with_column("item", [*range(11), 5000]), r"all\.parquet, row 11: feature 'item': id 5000 is outside \[0, 1000\)"),
        (with_column("weight", [0.0] * ITEMS), "no item can be drawn: the weights in 'weight' are all 0"),
        (with_column("weight", [1.0, -1.0] * 6), r"row 1: column 'weight': sample weight -1.0 is negative"),
        (with_column("weight", [1.0, None] * 6), r"row 1: column 'weight': the sample weight is missing"),
        (with_column("weight", [math.inf] * ITEMS), "row 0: column 'weight': .* out of range"),
        (with_column("price", ["much"] * ITEMS), r"all\.parquet, row 0: feature 'price'"),
    ],
)
def test_items_that_can_not_be_are_named(folder: Path, change: Change, message: str) -> None:
    pq.write_table(change(make_items()), folder / "items/all.parquet", row_group_size=5)
    data, features = make_config(folder)
    with pytest.raises(DataError, match=message):
        open_items(data, features)


@pytest.mark.parametrize("where", ["items/all.parquet", "rows.parquet"])
def test_ids_that_are_none_are_told_by_their_column(folder: Path, where: str) -> None:
    """No feature reads it, so a feature's name would say nothing."""
    for name, ids in (("items/all.parquet", [*range(ITEMS)]), ("rows.parquet", [row % ITEMS for row in range(ROWS)])):
        table = pq.read_table(folder / name)
        wrong = [0.5 if place == 9 else float(one) for place, one in enumerate(ids)]
        pq.write_table(table.append_column("ident", pa.array(wrong if name == where else ids)), folder / name)
    with pytest.raises(DataError, match=rf"{where}, row 9: column 'ident': 0\.5 is not a whole number"):
        list(open_reader(folder, make_config(folder, "ident")))


def test_missing_files_and_columns_of_ids_are_named(folder: Path) -> None:
    pq.write_table(make_rows().rename_columns(["it", "tags", "price", "weight", "user", "label"]), folder / "rows.parquet")
    with pytest.raises(DataError, match=r"rows\.parquet has no column 'item'"):
        open_reader(folder)
    (folder / "items/all.parquet").unlink()
    with pytest.raises(DataError, match=r"items has no \.parquet"):
        open_reader(folder)


def test_a_config_without_a_sampler_reads_no_items() -> None:
    assert open_items(DataConfig(), []) is None
    assert create_sampler(DataConfig(), None) is None


def test_an_item_takes_the_memory_that_the_docs_say(folder: Path) -> None:
    """20 bytes, 12 for each id feature of one id each, 12 and 8 for each id for others, and 4 for each number."""
    items = items_of([1.0] * 100, folder)
    columns = items._rows._columns
    parts: list[npt.NDArray[Any]] = [items._ids, items._weights, items._ends, columns.dense["price"]]
    parts += [array for bag in columns.sparse.values() for array in (bag.values, bag.lengths)]
    parts += [starts for starts in items._rows._starts.values() if starts is not None]
    tags = sum(item % 3 for item in range(100))
    assert sum(part.nbytes for part in parts) == 100 * (20 + 12 + 12 + 4) + tags * 8
