"""Lookup and match features, against plain Python dictionaries."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from emberline.encoding import EncodedColumns, columns_from_arrow, columns_from_rows, encode
from emberline.errors import RequestError
from emberline.schema import (
    BoundaryEncoder,
    BucketEncoder,
    Combiner,
    FeatureKind,
    FeatureSpec,
    HashEncoder,
    LookupEncoder,
    MatchEncoder,
    NumericEncoder,
    RawIdEncoder,
    ValueEncoder,
    VocabEncoder,
)
from tests.encoding.cuts import cut

IDS = RawIdEncoder()
NUMBERS = NumericEncoder()


def spec(encoder: LookupEncoder | MatchEncoder, **options: Any) -> FeatureSpec:
    columns = ["m", "k"]
    if isinstance(encoder, MatchEncoder):
        columns = ["m", *(["k"] if not encoder.any_outer else []), *(["s"] if not encoder.any_inner else [])]
    is_dense = isinstance(encoder.inner, NumericEncoder)
    kind = FeatureKind.DENSE if is_dense else FeatureKind.SPARSE
    return FeatureSpec(
        name="f", kind=kind, columns=tuple(columns), encoder=encoder, **{"separator": "|", "value_dim": 1 if is_dense else 0, **options}
    )


def run(feature: FeatureSpec, *rows: Mapping[str, object]) -> list[list[Any]]:
    return listed(encode([feature], *columns_from_rows([feature], rows, surplus="ignore")))


def listed(encoded: EncodedColumns) -> list[list[Any]]:
    """Ids or floats, row by row."""
    if "f" in encoded.dense:
        matrix: list[list[Any]] = encoded.dense["f"].tolist()
        return matrix
    bag = encoded.sparse["f"]
    return cut(bag.values.tolist(), bag.lengths)


def text_id(text: str) -> int:
    return xxhash.xxh64_intdigest(text.encode()) % (2**63 - 1)


MAP = {"a": 1, "b": 2, "7": 3}


@pytest.mark.parametrize(
    "held",
    [MAP, {"a": "1", "b": "2", "7": "3"}, "a:1\x1db:2\x1d7:3", ["a:1", "b:2", "7:3"], "\x1da:1\x1d\x1db:2\x1dx:\x1d7:3", {**MAP, "z": None, "": 9}],
    ids=str,
)
@pytest.mark.parametrize(
    ("keys", "want"), [("a", [1]), ("b|a|b", [2, 1, 2]), (7, [3]), ([7, "a"], [3, 1]), (7.0, [3]), ("c", []), (None, []), ("", [])]
)
def test_all_forms_of_maps(held: object, keys: object, want: list[int]) -> None:
    feature = spec(LookupEncoder(inner=IDS))
    assert run(feature, {"m": held, "k": keys}) == [want]
    assert run(feature, {"m": None, "k": "a"}, {"m": held, "k": keys}, {"m": held, "k": None}) == [[], want, []]


@pytest.mark.parametrize(
    ("inner", "want"),
    [
        (HashEncoder(rows=10), [xxhash.xxh64_intdigest(b"2") % 10]),
        (BucketEncoder(rows=5), [2]),
        (BucketEncoder(rows=2, oov_row=0), [0]),
        (VocabEncoder(words=("1", "2"), word_rows=(4, 7), oov_row=1, rows=8), [7]),
        (BoundaryEncoder(boundaries=(0.5, 1.5, 2.5)), [2]),
        (NUMBERS, [2.0]),
    ],
)
def test_inner_encoders(inner: ValueEncoder, want: list[Any]) -> None:
    assert run(spec(LookupEncoder(inner=inner)), {"m": MAP, "k": "b"}) == [want]
    assert run(spec(LookupEncoder(inner=inner)), {"m": "a:1\x1db:2", "k": "b"}) == [want]


def test_a_missing_key_reads_the_default() -> None:
    assert run(spec(LookupEncoder(inner=IDS), default="9|8"), {"m": MAP, "k": "c"}) == [[text_id("9|8")]]
    assert run(spec(LookupEncoder(inner=IDS, value_separator=","), default="9,8"), {"m": MAP, "k": "c"}) == [[9, 8]]
    assert run(spec(LookupEncoder(inner=NUMBERS, combiner=Combiner.COUNT), default="5"), {"m": MAP, "k": "c"}) == [[5]]
    assert run(spec(LookupEncoder(inner=NUMBERS)), {"m": MAP, "k": "c"}) == [[0]]
    for nothing in ({"a": math.nan}, "a:nan", {"a": None}, "a:", {}):
        assert run(spec(LookupEncoder(inner=NUMBERS), default="4"), {"m": nothing, "k": "a"}) == [[4]]


@pytest.mark.parametrize(("combiner", "want"), [("sum", 13), ("mean", 13 / 3), ("min", 1), ("max", 6), ("count", 3)])
def test_combiners(combiner: str, want: float) -> None:
    feature = spec(LookupEncoder(inner=NUMBERS, combiner=Combiner(combiner)))
    held = {"a": 1, "b": 6, "c": None}
    assert run(feature, {"m": held, "k": "b|a|c|x|b"}, {"m": held, "k": "x"}) == [[np.float32(want)], [0]]
    buckets = spec(LookupEncoder(inner=BoundaryEncoder(boundaries=(0.5, 2.0, 5.0)), combiner=Combiner(combiner)))
    assert run(buckets, {"m": held, "k": "b|a|c|x|b"}, {"m": held, "k": "x"}) == [[sum(edge <= want for edge in (0.5, 2.0, 5.0))], []]


def test_vectors() -> None:
    feature = spec(LookupEncoder(inner=NUMBERS, combiner=Combiner.SUM, value_separator=","), value_dim=2, default="7")
    held = {"a": "1,2", "b": "10,", "c": "1"}
    assert run(feature, {"m": held, "k": "a|b"}, {"m": held, "k": "b"}, {"m": held, "k": "x"}) == [[11, 2], [10, 7], [7, 7]]
    with pytest.raises(RequestError, match="feature 'f': row 1: a map holds 1 numbers, not 2"):
        run(feature, {"m": held, "k": "a"}, {"m": held, "k": "a|c"})
    assert run(spec(LookupEncoder(inner=NUMBERS), value_dim=2), {"m": {"a": 1, "b": 2}, "k": "b|a"}) == [[2, 1]]
    with pytest.raises(RequestError, match="feature 'f': row 0: 1 numbers, not 2"):
        run(spec(LookupEncoder(inner=NUMBERS), value_dim=2), {"m": {"a": 1, "b": 2}, "k": "b"})


def test_values_with_their_keys() -> None:
    feature = spec(LookupEncoder(inner=IDS, with_key=True))
    want = [[text_id("b_2"), text_id("a_1")]]
    assert run(feature, {"m": MAP, "k": "b|a"}) == run(feature, {"m": "a:1\x1db:2", "k": "b|a"}) == want
    assert run(spec(LookupEncoder(inner=IDS, with_key=True, value_separator=",")), {"m": {"ä": "x,y"}, "k": "ä"}) == [
        [text_id("ä_x"), text_id("ä_y")]
    ]
    assert run(feature, {"m": {7: 8}, "k": 7}) == [[text_id("7_8")]]


def test_the_last_of_equal_keys_counts() -> None:
    feature = spec(LookupEncoder(inner=IDS))
    assert run(feature, {"m": "a:1\x1da:2\x1db:3\x1da:", "k": "a"}) == [[2]]
    table = pa.table({"m": pa.array([[("a", 1), ("b", 3), ("a", 2), ("a", None)]], pa.map_(pa.string(), pa.int64())), "k": ["a"]})
    assert listed(encode([feature], columns_from_arrow([feature], table))) == [[2]]
    match = spec(MatchEncoder(inner=IDS, any_outer=True))
    assert run(match, {"m": "p^s:1|q^s:2|p^s:3", "s": "s"}) == [[2, 3]]


def test_a_key_ends_at_the_first_mark() -> None:
    assert run(spec(LookupEncoder(inner=IDS)), {"m": "a:b:c", "k": "a"}) == [[text_id("b:c")]]
    assert run(spec(MatchEncoder(inner=IDS)), {"m": "p^s:x:y^z", "k": "p", "s": "s"}) == [[text_id("x:y^z")]]


NESTED = {"p": {"s": 1, "t": 2}, "q": {"s": 3}, "r": None}
NESTED_FORMS = [NESTED, "p^s:1,t:2|q^s:3", ["p^s:1,t:2", "q^s:3"], "|p^,s:1,,t:2|q^s:3,u:|r^|", [{"p": 1}]]


@pytest.mark.parametrize("held", NESTED_FORMS[:4], ids=str)
@pytest.mark.parametrize(
    ("options", "outer", "inner", "want"),
    [
        ({}, "p", "s", [1]),
        ({}, "q|p", "t|s", [3, 2, 1]),
        ({}, "x", "s", []),
        ({}, None, "s", []),
        ({}, "p", None, []),
        ({"any_outer": True}, None, "s", [1, 3]),
        ({"any_outer": True}, None, "t|s", [2, 1, 3]),
        ({"any_inner": True}, "p", None, [1, 2]),
        ({"any_inner": True}, "q|p|x", None, [3, 1, 2]),
        ({"any_outer": True, "any_inner": True}, None, None, [1, 2, 3]),
        ({"with_outer": True}, "q", "s", [text_id("q_3")]),
        ({"with_inner": True}, "q", "s", [text_id("s_3")]),
        ({"with_outer": True, "with_inner": True, "any_outer": True}, "q", "s", [text_id("p_s_1"), text_id("q_s_3")]),
    ],
)
def test_matches(held: object, options: dict[str, Any], outer: object, inner: object, want: list[int]) -> None:
    feature = spec(MatchEncoder(inner=IDS, **options))
    assert run(feature, {"m": None, "k": "p", "s": "s"}, {"m": held, "k": outer, "s": inner}, {"m": "", "k": "p", "s": "s"})[1] == want


def test_numbers_of_matches() -> None:
    row = {"m": {"p": {"s": 0.5, "t": "2"}, "q": {"s": 3}}, "k": "p|q", "s": "s|t"}
    assert run(spec(MatchEncoder(inner=NUMBERS, combiner=Combiner.SUM)), row) == [[5.5]]
    assert run(spec(MatchEncoder(inner=BoundaryEncoder(boundaries=(1.0, 2.5)))), row) == [[0, 1, 2]]


@pytest.mark.parametrize(
    ("encoder", "row", "problem"),
    [
        (LookupEncoder(inner=IDS), {"m": "a", "k": "a"}, "'a' has no ':' between key and value"),
        (LookupEncoder(inner=IDS), {"m": ["a:1", "b"], "k": "a"}, "'b' has no ':'"),
        (LookupEncoder(inner=IDS), {"m": 3, "k": "a"}, "a map is an object, a text of key:value"),
        (LookupEncoder(inner=IDS), {"m": {"a": [1]}, "k": "a"}, "a map holds lists or maps"),
        (LookupEncoder(inner=IDS), {"m": {"a": {"b": 1}}, "k": "a"}, "a map holds lists or maps"),
        (LookupEncoder(inner=IDS), {"m": {"a": True}, "k": "a"}, "True is neither text nor a number"),
        (LookupEncoder(inner=IDS), {"m": {0.5: 1}, "k": "a"}, "0.5 is not a whole number"),
        (LookupEncoder(inner=IDS), {"m": MAP, "k": 0.5}, "0.5 is not a whole number"),
        (LookupEncoder(inner=IDS), {"m": {"a": 0.5}, "k": "a"}, "0.5 is not a whole number"),
        (LookupEncoder(inner=IDS), {"m": MAP, "k": {"a": 1}}, "the values have weights"),
        (LookupEncoder(inner=NUMBERS), {"m": {"a": "x"}, "k": "a"}, "'x' is not a number"),
        (LookupEncoder(inner=NUMBERS), {"m": MAP, "k": "a|b"}, "2 numbers, not 1"),
        (LookupEncoder(inner=BucketEncoder(rows=2)), {"m": MAP, "k": "a|b"}, r"id 2 is outside \[0, 2\)"),
        (MatchEncoder(inner=IDS), {"m": "p", "k": "p", "s": "s"}, r"'p' has no '\^'"),
        (MatchEncoder(inner=IDS), {"m": "p^s", "k": "p", "s": "s"}, "'s' has no ':'"),
        (MatchEncoder(inner=IDS), {"m": {"p": 1}, "k": "p", "s": "s"}, "a map holds no map for each outer key"),
        (MatchEncoder(inner=IDS), {"m": {"p": {"s": [1]}}, "k": "p", "s": "s"}, "a map holds lists or maps"),
        (MatchEncoder(inner=IDS), {"m": "p^s:1", "k": "|".join(["p"] * 300), "s": "|".join(["s"] * 300)}, "90000 combinations, more than 65536"),
    ],
)  # fmt: skip
def test_refused(encoder: LookupEncoder | MatchEncoder, row: dict[str, object], problem: str) -> None:
    with pytest.raises(RequestError, match=f"feature 'f': .*{problem}"):
        run(spec(encoder), {"m": None, "k": None, "s": None}, row)


def test_a_wrong_value_that_no_key_finds_does_no_harm() -> None:
    assert run(spec(LookupEncoder(inner=NUMBERS)), {"m": {"a": "x", "b": 2}, "k": "b"}) == [[2]]


def test_objects_beside_texts_are_refused() -> None:
    with pytest.raises(RequestError, match="feature 'f': row 1: 'a:1' is no object, but another row holds one"):
        run(spec(LookupEncoder(inner=IDS)), {"m": MAP, "k": "a"}, {"m": "a:1", "k": "a"})


@pytest.mark.parametrize(
    "encoder",
    [
        LookupEncoder(inner=NUMBERS, with_key=True),
        LookupEncoder(inner=IDS, combiner=Combiner.SUM),
        MatchEncoder(inner=BoundaryEncoder(boundaries=(1.0,)), with_outer=True),
    ],
)
def test_settings_that_exclude_each_other(encoder: LookupEncoder | MatchEncoder) -> None:
    with pytest.raises(RequestError, match=r"feature 'f': .*number"):
        run(spec(encoder), {"m": MAP, "k": "a", "s": "a"})


def test_one_column_as_a_map_and_as_weighted_ids() -> None:
    weighted = FeatureSpec(name="w", kind=FeatureKind.SPARSE, columns=("m",), encoder=IDS, weighted=True)
    features = [weighted, spec(LookupEncoder(inner=IDS)), replace(weighted, name="w2")]
    row = {"m": {"5": 2, "6": 3}, "k": 6}
    encoded = encode(features, *columns_from_rows(features, [row]))
    assert listed(encoded) == [[3]]
    assert encoded.sparse["w"].weights is not None
    assert encoded.sparse["w"].weights.tolist() == [2, 3]
    table = pa.table({"m": pa.array([[(5, 2), (6, 3)]], pa.map_(pa.int64(), pa.int64())), "k": [6]})
    from_arrow = encode(features, columns_from_arrow(features, table))
    assert repr(from_arrow) == repr(encoded)


def test_structs() -> None:
    feature = spec(LookupEncoder(inner=IDS))
    rows: list[dict[str, Any]] = [{"m": {"a": "x", "b": None}, "k": "a|b"}, {"m": {"a": None, "b": "5"}, "k": "a|b"}, {"m": None, "k": "a"}]
    table = pa.table({"m": pa.array([row["m"] for row in rows]), "k": [row["k"] for row in rows]})
    assert pa.types.is_struct(table.schema.field("m").type)
    assert listed(encode([feature], columns_from_arrow([feature], table))) == run(feature, *rows) == [[text_id("x")], [5], []]
    numbers = pa.table({"m": pa.array([{"a": 2**53 + 1, "b": 4}]), "k": ["a|b"]})
    assert listed(encode([feature], columns_from_arrow([feature], numbers))) == [[2**53 + 1, 4]]
    mixed = pa.table({"m": pa.array([{"a": "x", "b": 4}]), "k": ["a|b"]})
    with pytest.raises(RequestError, match="feature 'f': column 'm' is a struct of fields of several kinds"):
        columns_from_arrow([feature], mixed)


def test_manifest() -> None:
    feature = spec(LookupEncoder(inner=BoundaryEncoder(boundaries=(1.0,)), combiner=Combiner.MEAN))
    assert FeatureSpec.from_dict(asdict(feature)) == feature


KEYS = st.sampled_from(["a", "b", "ä", "7", "12"])
HELD = st.integers(-5, 5) | st.sampled_from([2**63 - 1, -(2**63)])
MAPS = st.none() | st.dictionaries(KEYS, st.none() | HELD, max_size=4)
NESTS = st.none() | st.dictionaries(KEYS, st.none() | st.dictionaries(KEYS, st.none() | HELD, max_size=3), max_size=3)
ASKED = st.none() | st.lists(KEYS, max_size=3)


def _lookup(held: Mapping[str, Any] | None, keys: Sequence[str] | None) -> list[int]:
    return [held[key] for key in keys or () if held and held.get(key) is not None]


def _text_map(held: Mapping[str, Any] | None) -> str | None:
    return None if held is None else "\x1d".join(f"{key}:{'' if value is None else value}" for key, value in held.items())


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(MAPS, ASKED), max_size=6))
def test_lookups_against_dictionaries(rows: list[tuple[dict[str, Any] | None, list[str] | None]]) -> None:
    feature = spec(LookupEncoder(inner=IDS), default="77")
    want = [_lookup(held, keys) or [77] for held, keys in rows]
    assert run(feature, *[{"m": held, "k": keys} for held, keys in rows]) == want
    texts = [{"m": _text_map(held), "k": None if keys is None else "|".join(keys)} for held, keys in rows]
    assert run(feature, *texts) == want
    for kind in (pa.map_(pa.string(), pa.int64()), pa.map_(pa.large_string(), pa.string())):
        as_value = int if pa.types.is_integer(kind.item_type) else str
        pairs = [None if held is None else [(key, None if value is None else as_value(value)) for key, value in held.items()] for held, _ in rows]
        table = pa.table({"m": pa.array(pairs, kind), "k": pa.array([keys for _, keys in rows], pa.list_(pa.string()))})
        assert listed(encode([feature], columns_from_arrow([feature], table), len(rows))) == want
        assert listed(encode([feature], columns_from_arrow([feature], table.slice(len(rows) // 2)))) == want[len(rows) // 2 :]


def _match(held: Mapping[str, Any] | None, outer: Sequence[str] | None, inner: Sequence[str] | None, encoder: MatchEncoder) -> list[int]:
    flat = [(p, s, value) for p, nested in (held or {}).items() for s, value in (nested or {}).items() if value is not None]
    found: list[int] = []
    for p in [None] if encoder.any_outer else outer or []:
        for s in [None] if encoder.any_inner else inner or []:
            found += [value for p_, s_, value in flat if p in (None, p_) and s in (None, s_)]
    return found


def _text_nest(held: Mapping[str, Any] | None) -> str | None:
    if held is None:
        return None
    pairs = {p: ",".join(f"{s}:{'' if value is None else value}" for s, value in (nested or {}).items()) for p, nested in held.items()}
    return "|".join(f"{p}^{text}" for p, text in pairs.items())


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(NESTS, ASKED, ASKED), max_size=5), st.booleans(), st.booleans())
def test_matches_against_dictionaries(rows: list[tuple[Any, Any, Any]], any_outer: bool, any_inner: bool) -> None:
    encoder = MatchEncoder(inner=IDS, any_outer=any_outer, any_inner=any_inner)
    feature = spec(encoder)
    want = [_match(held, outer, inner, encoder) for held, outer, inner in rows]
    assert run(feature, *[{"m": held, "k": outer, "s": inner} for held, outer, inner in rows]) == want
    assert run(feature, *[{"m": _text_nest(held), "k": outer, "s": inner} for held, outer, inner in rows]) == want
    kind = pa.map_(pa.string(), pa.map_(pa.string(), pa.int64()))
    pairs = [None if held is None else [(p, None if nested is None else list(nested.items())) for p, nested in held.items()] for held, _, _ in rows]
    lists = pa.list_(pa.string())
    table = pa.table({"m": pa.array(pairs, kind), "k": pa.array([row[1] for row in rows], lists), "s": pa.array([row[2] for row in rows], lists)})
    assert listed(encode([feature], columns_from_arrow([feature], table), len(rows))) == want


def test_many_rows_and_large_maps() -> None:
    feature = spec(LookupEncoder(inner=IDS))
    rng = np.random.default_rng(0)
    rows = [{"m": {str(key): int(key) * 3 for key in rng.integers(0, 500, 50)}, "k": rng.integers(0, 500, 20).tolist()} for _ in range(300)]
    want = [[key * 3 for key in row["k"] if str(key) in row["m"]] for row in rows]
    assert run(feature, *rows) == want
