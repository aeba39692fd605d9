"""Requests of the ordinary kind: straight to looked-up rows, or not at all, and always as the long way answers."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from emberline.schema import BucketEncoder, HashEncoder, LookupSpec, ModelSchema, Pooling, RawIdEncoder, TableKind, UnknownIds
from emberline.serving.inputs import InputMaker
from emberline.serving.lookup import BagRows, Bags, DirectReader, RowFinder, TorchLookup, direct, native
from emberline.serving.lookup.layout import Layout
from emberline.serving.lookup.native import NativeLookup
from emberline.serving.overlaid_rows import OverlaidRows
from emberline.serving.remap import FallbackRows, RemapIndex, SortedRemap, build_index
from emberline.serving.request import PackedRequest, RequestValidator
from emberline.serving.unknown import IdCounts, UnknownCounter
from tests.serving.conftest import Arrays, dense, make_lookup_model, make_steps_toy, random_request, sparse

pytestmark = pytest.mark.skipif(native.KERNEL.get() is None, reason="there is no C compiler here")
CPU = torch.device("cpu")
INT64_MIN = -(2**63)
KNOWN = (INT64_MIN, -5, 0, 3, 4, 2**62, 2**63 - 2)
"""Raw ids with a row of their own; the other rows are the fallbacks'."""
POLICIES = ("one", "ranges", "parts", "refuse", "row")


def make_schema(*, with_dense: bool, weighted: bool, policy: str = "") -> ModelSchema:
    reads = [("user", Pooling.SUM, 4), ("item", Pooling.MEAN, 5), ("city", Pooling.SUM, 3), ("item", Pooling.SUM, 4)]
    reads += [("raw", Pooling.MEAN, 6), ("raw", Pooling.SUM, 6), ("user", Pooling.SUM, 5), ("raw", Pooling.SUM, 2)] if policy else []
    lookups = tuple(
        LookupSpec(
            key=f"{place}",
            feature=name,
            table=f"t{dim}",
            pooling=pooling,
            dim=dim,
            weighted=weighted and name == "item",
            unknown_row=8 if policy == "row" and name == "raw" else None,
        )
        for place, (name, pooling, dim) in enumerate(reads)
    )
    features = [
        sparse("user", HashEncoder(rows=9)),
        sparse("item", BucketEncoder(rows=9), weighted=weighted),
        sparse("city", BucketEncoder(rows=7, oov_row=6), value_dim=3),
    ]
    if policy:
        features.insert(1, replace(sparse("raw", RawIdEncoder()), unknown_ids=UnknownIds.ERROR if policy == "refuse" else UnknownIds.FALLBACK))
    tables = {"t4": torch.randn(9, 4), "t5": torch.randn(9, 5), "t3": torch.randn(7, 3)}
    if policy:
        tables |= {"t6": torch.randn(9, 6), "t2": torch.randn(9, 2)}
    schema = make_lookup_model(lookups, tuple(features), tables).schema
    schema = replace(schema, tables=tuple(replace(one, kind=TableKind.ZCH) if one.name in ("t6", "t2") else one for one in schema.tables))
    return replace(schema, features=(*features, dense("numbers", 2))) if with_dense else schema


def remaps_of(policy: str) -> dict[str, RemapIndex]:
    """The maps of the two tables that `raw` reads."""
    if not policy:
        return {}
    starts, rows, routing = torch.tensor([INT64_MIN]), torch.tensor([7]), None
    if policy in ("ranges", "parts"):
        starts, rows, routing = torch.tensor([INT64_MIN, 0, 50]), torch.tensor([8, 7, 6]), "mixed" if policy == "parts" else None
    fallback = FallbackRows(starts, rows, routing=routing)
    both = ((KNOWN, torch.arange(7)), (KNOWN[1::2], torch.tensor([3, 1, 0])))
    return {name: build_index(torch.tensor(own), places, fallback, num_rows=9) for name, (own, places) in zip(("t6", "t2"), both, strict=True)}


def overlay(table: torch.Tensor, share: float, draw: torch.Generator) -> OverlaidRows:
    """A table of which a share of the rows lies elsewhere: what is at their places may not be read."""
    places = (torch.rand(table.shape[0], generator=draw) < share).nonzero().squeeze(1)
    base = table.clone()
    base[places] = torch.nan
    return OverlaidRows.over(base, places, table[places])


def reader_of(
    schema: ModelSchema, policy: str = "", layout: Layout | None = None, changed: Mapping[str, float] = MappingProxyType({})
) -> tuple[DirectReader, NativeLookup, RowFinder]:
    library = native.KERNEL.get()
    assert library is not None
    draw = torch.Generator().manual_seed(1)
    tables = {table.name: torch.randn(table.rows, table.dim, generator=draw) for table in schema.tables}
    rows = {name: overlay(table, changed[name], draw) if name in changed else table for name, table in tables.items()}
    lookup = NativeLookup(schema, rows, None, library)
    finder = RowFinder(schema, remaps_of(policy))
    reader = DirectReader.of(schema, lookup, finder, layout or Layout.side_by_side(schema))
    assert reader is not None
    return reader, lookup, finder


def the_long_way(schema: ModelSchema, lookup: NativeLookup, finder: RowFinder, request: PackedRequest) -> tuple[dict[str, torch.Tensor], BagRows]:
    checked = RequestValidator(schema).check(request)
    rows = finder(Bags.cut(checked, len(schema.sparse_features), CPU))
    return InputMaker(schema)(lookup, rows, checked), rows


def draw_request(schema: ModelSchema, num_rows: int, seed: int, *, weights: bool, policy: str) -> Arrays:
    arrays = random_request(schema, num_rows=num_rows, seed=seed, weights=weights)
    if policy:
        ends = arrays["lengths"].reshape(len(schema.sparse_features), -1).sum(axis=1).cumsum()
        strange = [] if policy == "refuse" and seed % 3 else [5, -6, 60, 2**63 - 1, INT64_MIN + 1]
        arrays["ids"][ends[0] : ends[1]] = np.random.default_rng(seed).choice(
            [*(KNOWN[1::2] if policy == "refuse" else KNOWN), *strange], ends[1] - ends[0]
        )
    return arrays


def damage(arrays: Arrays, seed: int) -> Arrays:
    """The same with something wrong."""
    wrong: list[Arrays] = [
        {"ids": arrays["ids"].astype(np.int32)},
        {"ids": np.append(arrays["ids"], 1)},
        {"lengths": arrays["lengths"].astype(np.int64)},
        {"lengths": -arrays["lengths"] - 1},
        {"lengths": arrays["lengths"][1:]},
        {"dense": np.zeros(1, np.float32)},
        {"weights": np.full(arrays["ids"].size, np.nan, np.float32)},
        {"rows_per_user": arrays["lengths"]},
    ]
    return arrays | wrong[seed % len(wrong)]


@settings(max_examples=60)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    bad=st.sets(st.integers(0, 4), max_size=2),
    with_dense=st.booleans(),
    weighted=st.booleans(),
    told=st.booleans(),
    checked=st.booleans(),
    policy=st.sampled_from(("", *POLICIES)),
    changed=st.dictionaries(st.sampled_from(("t4", "t5", "t3", "t6", "t2")), st.sampled_from((0.0, 0.1, 0.5, 1.0))),
    seed=st.integers(0, 99),
)
def test_it_gives_what_the_long_way_gives(
    sizes: list[int], bad: set[int], with_dense: bool, weighted: bool, told: bool, checked: bool, policy: str, changed: dict[str, float], seed: int
) -> None:
    schema = make_schema(with_dense=with_dense, weighted=weighted, policy=policy)
    reader, lookup, finder = reader_of(schema, policy, changed=changed)
    requests, want, counter = list[PackedRequest](), list[dict[str, torch.Tensor] | None](), UnknownCounter(reader.tables)
    for place, num_rows in enumerate(sizes):
        arrays = draw_request(schema, num_rows, seed + place, weights=told and place != 1, policy=policy)
        request = PackedRequest(**(damage(arrays, seed + place) if place in bad else arrays))
        if place in bad:
            requests.append(request)
            want.append(None)
            continue
        requests.append(RequestValidator(schema).check(request) if checked else request)
        answer, rows = the_long_way(schema, lookup, finder, request)
        refused = policy == "refuse" and not bool(rows.known().all())
        want.append(None if refused else answer)
        if not refused:
            counter.count(rows)
    alone, together = reader.by_request(requests), reader.together(requests)
    answered = [answer for answer in want if answer is not None]
    assert alone.num_rows == together.num_rows == tuple(-1 if answer is None else rows for rows, answer in zip(sizes, want, strict=True))
    for found, own in zip(alone.answers, want, strict=True):
        assert (found is None) == (own is None)
        assert own is None or torch.equal(found, own["pooled"])
        assert own is None or not bool(found.isnan().any())
    total = sum(answer["pooled"].shape[0] for answer in answered)
    for found, name in ((together.answers, "pooled"), (together.dense, "dense")):
        if found is None:
            assert not with_dense
        elif answered:
            assert torch.equal(found[:total], torch.cat([answer[name] for answer in answered]))
    counts = counter_of(reader, alone.counts)
    assert counts == counter_of(reader, together.counts) == counter.read()


def counter_of(reader: DirectReader, counts: Sequence[int]) -> Mapping[str, IdCounts]:
    counter = UnknownCounter(reader.tables)
    counter.add(zip(reader.tables, counts[::2], counts[1::2], strict=True))
    return counter.read()


def test_columns_lie_where_a_layout_has_them() -> None:
    schema = make_schema(with_dense=True, weighted=False)
    spans = [("dense", 1, 2), ("pooled", 4, 12), ("pooled", 0, 4), ("dense", 0, 2), ("pooled", 12, 12), ("pooled", 4, 9)]
    layout = Layout.of(schema, spans)
    assert layout is not None
    reader, lookup, finder = reader_of(schema, layout=layout)
    for num_rows in (1, 7):
        request = PackedRequest(**random_request(schema, num_rows=num_rows, seed=num_rows))
        (found,) = reader.by_request([request]).answers
        inputs, _ = the_long_way(schema, lookup, finder, request)
        assert torch.equal(found, torch.cat([inputs[name][:, first:stop] for name, first, stop in spans], dim=1))
    assert Layout.of(schema, [("pooled", 0, 3)]) is None
    assert Layout.of(schema, [("steps.clicks", 0, 3)]) is None


@pytest.mark.parametrize("policy", ["", "one", "parts"])
def test_large_requests_and_many_threads(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work is shared out among threads by requests, and inside a request; and any number of threads may ask."""
    schema = make_schema(with_dense=True, weighted=True, policy=policy)
    monkeypatch.setattr(direct, "IDS_PER_THREAD", 64)
    monkeypatch.setattr(direct, "MAPPED_PER_THREAD", 64)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    reader, lookup, finder = reader_of(schema, policy, changed={"t5": 0.3})
    requests = [PackedRequest(**draw_request(schema, rows, rows, weights=rows % 2 == 0, policy=policy)) for rows in (400, 1, 300, 90, 5)]
    want = [the_long_way(schema, lookup, finder, request)[0] for request in requests]
    wrong = list[int]()

    def ask() -> None:
        for turn in range(10):
            found = reader.by_request(requests).answers if turn % 2 else reader.together(requests).answers.split([400, 1, 300, 90, 5])
            one = reader.by_request(requests[:1]).answers
            wrong.extend(place for place, (a, b) in enumerate(zip([*found, *one], [*want, want[0]], strict=True)) if not torch.equal(a, b["pooled"]))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_no_request() -> None:
    schema = make_schema(with_dense=True, weighted=True)
    reader, *_ = reader_of(schema)
    assert reader.by_request([]) == ((), None, (), ())
    assert reader.together([]).answers.shape == (0, 16)


def ids(values: list[int]) -> np.ndarray[Any, Any]:
    return np.array(values, np.int64)


def lengths(values: list[int]) -> np.ndarray[Any, Any]:
    return np.array(values, np.int32)


GOOD: dict[str, Any] = {
    "ids": ids([1, 2, 3]),
    "lengths": lengths([1, 1, 1]),
    "weights": np.ones(3, np.float32),
    "dense": np.zeros(2, np.float32),
}


class Numbers(np.ndarray[Any, Any]):
    """An array of another class."""


ODD: list[dict[str, Any]] = [
    {"ids": ids([1, 2, 3]).astype(np.int32)},
    {"ids": ids([1, 2, 3]).astype(np.uint64)},
    {"ids": [1, 2, 3]},
    {"ids": None},
    {"ids": ids([1, 2, 3])[None]},
    {"ids": np.ma.MaskedArray(ids([1, 2, 3]), mask=[True, False, False])},  # type: ignore[no-untyped-call]
    {"ids": ids([1, 2, 3]).view(Numbers)},
    {"ids": ids([1, 2, 3]).view(np.uint8).view(">i8")},
    {"ids": np.array(["2020-01-01"] * 3, "datetime64[s]")},
    {"ids": np.array([None, 1, 2], object)},
    {"ids": ids([1, 2])},
    {"ids": ids([1, 2, 3, 4]), "weights": np.ones(4, np.float32)},
    {"ids": ids([1, 9, 3])},
    {"ids": ids([1, -1, 3])},
    {"lengths": lengths([1, 1, 1]).astype(np.int64)},
    {"lengths": lengths([2, -1, 2])},
    {"lengths": lengths([-(2**31), 1, 2])},
    {"lengths": lengths([2**31 - 1, 1, 2])},
    {"lengths": lengths([0, 0, 4]), "ids": ids([1, 1, 1, 1]), "weights": np.ones(4, np.float32)},
    {"lengths": lengths([1, 1]), "ids": ids([1, 2]), "weights": None},
    {"lengths": lengths([]), "ids": ids([]), "weights": None, "dense": np.empty(0, np.float32)},
    {"weights": np.ones(2, np.float32)},
    {"weights": np.ones(3, np.float64)},
    {"weights": np.array([1, np.nan, 1], np.float32)},
    {"weights": np.array([1, 1, -np.inf], np.float32)},
    {"dense": None},
    {"dense": np.zeros(3, np.float32)},
    {"dense": np.zeros(2)},
    {"dense": np.array([0, np.inf], np.float32)},
    {"dense": np.zeros(2, np.float32)[::-1]},
    {"dense": np.zeros(2, [("number", np.float32), ("gap", np.int8)])["number"]},
    {"steps": lengths([1])},
    {"rows_per_user": lengths([1])},
    {"rows_per_user": lengths([])},
    {"user_dense": np.empty(0, np.float32)},
    {"steps": np.zeros((2, 0), np.int32)},
    {"step_lengths": [1]},
    {"user_dense": np.zeros(0, np.float64), "steps": np.zeros((), np.int32)},
]


@pytest.mark.parametrize("change", ODD, ids=lambda change: "-".join(f"{name}" for name in change))
def test_what_is_out_of_the_ordinary_goes_the_long_way(change: dict[str, Any]) -> None:
    schema = make_schema(with_dense=True, weighted=True)
    reader, *_ = reader_of(schema)
    assert reader.by_request([PackedRequest(**GOOD)]).num_rows == (1,)
    for found in (reader.by_request, reader.together):
        assert found([PackedRequest(**(GOOD | change))]).num_rows == (-1,)
        assert found([PackedRequest(**GOOD), PackedRequest(**(GOOD | change)), PackedRequest(**GOOD)]).num_rows == (1, -1, 1)


def test_what_is_no_request_goes_the_long_way() -> None:
    reader, *_ = reader_of(make_schema(with_dense=True, weighted=True))
    assert reader.by_request([PackedRequest(**GOOD), None, 3]).num_rows == (1, -1, -1)  # type: ignore[list-item]


def test_a_model_without_weights_or_numbers_gets_none() -> None:
    reader, *_ = reader_of(make_schema(with_dense=False, weighted=False))
    plain = {"ids": GOOD["ids"], "lengths": GOOD["lengths"]}
    odd: list[dict[str, Any]] = [
        {"weights": GOOD["weights"]},
        *({"dense": dense} for dense in (GOOD["dense"], [0.0, 0.0], np.empty((2, 0), np.float32))),
    ]
    for more in odd:
        assert reader.by_request([PackedRequest(**plain, **more)]).num_rows == (-1,)
    goods: list[dict[str, Any]] = [{}, {"dense": np.empty(0, np.float32)}, {"steps": np.empty(0)}]
    for good in goods:
        assert reader.by_request([PackedRequest(**plain, **good)]).num_rows == (1,)


def test_a_row_that_is_not_there_leaves_no_gap_between_the_answers_of_others() -> None:
    schema = make_schema(with_dense=True, weighted=False, policy="one")
    _, lookup, _ = reader_of(schema, "one")
    beyond = FallbackRows(torch.tensor([INT64_MIN]), torch.tensor([9]))
    finder = RowFinder(schema, {name: build_index(torch.tensor(KNOWN), torch.arange(7), beyond, num_rows=9) for name in ("t6", "t2")})
    reader = DirectReader.of(schema, lookup, finder, Layout.side_by_side(schema))
    assert reader is not None
    whole, lost = ({"ids": ids([1, raw, 2, 3]), "lengths": lengths([1, 1, 1, 1]), "dense": np.ones(2, np.float32)} for raw in (KNOWN[0], 60))
    requests = [PackedRequest(**arrays) for arrays in (whole, lost, whole)]
    alone, together = reader.by_request(requests), reader.together(requests)
    assert alone.num_rows == (1, -1, 1)
    want, _ = the_long_way(schema, lookup, finder, requests[2])
    assert torch.equal(alone.answers[2], want["pooled"])
    assert together.num_rows == (-1, -1, -1)
    assert together.counts == (0, 0, 0, 0)


def test_what_torch_makes_by_default_does_not_matter() -> None:
    schema = make_schema(with_dense=True, weighted=True)
    reader, lookup, finder = reader_of(schema)
    request = PackedRequest(**GOOD)
    (want,) = reader.by_request([request]).answers
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            (alone,), together = reader.by_request([request]).answers, reader.together([request])
        long, _ = the_long_way(schema, lookup, finder, request)
    finally:
        torch.set_default_dtype(before)
    assert together.dense is not None
    assert (alone.dtype, together.dense.dtype) == (torch.float32, torch.float32)
    for found in (alone, together.answers, long["pooled"]):
        assert torch.equal(found, want)


def test_arrays_that_may_not_be_written_to() -> None:
    reader, *_ = reader_of(make_schema(with_dense=True, weighted=True))
    sealed = {name: array.copy() for name, array in GOOD.items()}
    for array in sealed.values():
        array.flags.writeable = False
    found = reader.together([PackedRequest(**sealed)])
    assert found.dense is not None
    assert found.dense.tolist() == [[0.0, 0.0]]
    assert torch.equal(found.answers, reader.together([PackedRequest(**GOOD)]).answers)


def test_models_that_always_go_the_long_way() -> None:
    library = native.KERNEL.get()
    assert library is not None
    schema = make_schema(with_dense=False, weighted=False, policy="one")
    tables = {table.name: torch.zeros(table.rows, table.dim) for table in schema.tables}
    layout, finder, own = Layout.side_by_side(schema), RowFinder(schema, {}), NativeLookup(schema, tables, None, library)
    assert DirectReader.of(schema, own, finder, layout) is not None
    assert DirectReader.of(schema, TorchLookup(schema, tables), finder, layout) is None
    slow = SortedRemap(torch.tensor([1]), torch.tensor([1]), FallbackRows(torch.tensor([INT64_MIN]), torch.tensor([0])))
    assert DirectReader.of(schema, own, RowFinder(schema, {"t6": slow}), layout) is None
    none = replace(schema, lookups=())
    assert DirectReader.of(none, NativeLookup(none, tables, None, library), RowFinder(none, {}), Layout.side_by_side(none)) is None
    steps = make_steps_toy()
    stepped = NativeLookup(steps.schema, steps.tables, None, library)
    assert DirectReader.of(steps.schema, stepped, RowFinder(steps.schema, {}), Layout.side_by_side(steps.schema)) is None
