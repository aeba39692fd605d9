import gc

import numpy as np
import pytest

from emberline.encoding import Column, Jagged, Texts, columns_from_rows, encode, hash_strings
from emberline.encoding.prepare import _prepared
from emberline.errors import RequestError
from emberline.schema import (
    BoundaryEncoder,
    BucketEncoder,
    CrossEncoder,
    Encoder,
    FeatureKind,
    FeatureSpec,
    HashEncoder,
    Normalizer,
    NumericEncoder,
    RawIdEncoder,
    VocabEncoder,
)


def _sparse(encoder: Encoder | None = None, **more: object) -> FeatureSpec:
    fields: dict[str, object] = {"name": "f", "kind": FeatureKind.SPARSE, "columns": ("f",), "encoder": encoder, "separator": ","}
    return FeatureSpec(**{**fields, **more})  # type: ignore[arg-type]


def _dense(value_dim: int = 1, **more: object) -> FeatureSpec:
    return _sparse(**{"encoder": NumericEncoder(), "kind": FeatureKind.DENSE, "value_dim": value_dim, **more})  # type: ignore[arg-type]


def _bags(feature: FeatureSpec, *values: object) -> list[list[int]]:
    bag = encode([feature], {"f": list(values)}).sparse["f"]
    ids = iter(bag.values.tolist())
    return [[next(ids) for _ in range(length)] for length in bag.lengths.tolist()]


@pytest.mark.parametrize("count", [1, 50])
def test_hash(count: int) -> None:
    want = [(hash_strings([text]) % np.uint64(1000)).tolist() for text in ("a", "123", "-5", "ä", "a\0", "x" * 10_000)]
    assert _bags(_sparse(HashEncoder(rows=1000)), *["a", 123, -5, "ä", "a\0", "x" * 10_000] * count) == want * count
    assert _bags(_sparse(HashEncoder(rows=1000)), *["a", "123", "-5", "ä", "a\0", "x" * 10_000] * count) == want * count


@pytest.mark.parametrize("count", [1, 50])
def test_bucket_within_and_outside(count: int) -> None:
    strict, lenient = _sparse(BucketEncoder(rows=10)), _sparse(BucketEncoder(rows=10, oov_row=3))
    assert _bags(strict, *[0, 9, "9", [1, 2], None, ""] * count) == [[0], [9], [9], [1, 2], [], []] * count
    assert _bags(lenient, *[0, 9, 10, -1, 2**40, "10", "x", "007", "1e1"] * count) == [[0], [9], [3], [3], [3], [3], [3], [3], [3]] * count
    for value in (10, -1, 2**40, "10", -(2**63)):
        with pytest.raises(RequestError, match=rf"feature 'f': row 2: id {value} is outside \[0, 10\)") as caught:
            _bags(strict, *[1] * 2 * count, *[1] * (2 - 2 * count), value) if count == 1 else _bags(strict, 1, 2, value, *[1] * count)
        assert (caught.value.feature, caught.value.row) == ("f", 2)
    for text in ("x", "007", "+1", "1.5", " 1"):
        with pytest.raises(RequestError, match=r"feature 'f': row 1: '.*' is not a whole number of 64 bits"):
            _bags(strict, 1, text)


def test_one_bad_value_among_several_features_is_named() -> None:
    features = [_sparse(BucketEncoder(rows=10), name=name, columns=(name,)) for name in ("a", "b", "c")]
    with pytest.raises(RequestError, match=r"feature 'b': row 0: id 10 is outside"):
        encode(features, {"a": [1, 2], "b": [10, 1], "c": [1, 99]})


@pytest.mark.parametrize("encoder", [HashEncoder(rows=10), BucketEncoder(rows=10), BoundaryEncoder(boundaries=tuple(map(float, range(9))))])
def test_encoded_ids_are_checked_against_the_rows(encoder: Encoder) -> None:
    feature = _sparse(encoder, encoded=True)
    assert _bags(feature, 9, "0,1", [3, "4"], None, 7.0) == [[9], [0, 1], [3, 4], [], [7]]
    with pytest.raises(RequestError, match=r"id 10 is outside \[0, 10\)"):
        _bags(feature, 10)
    with pytest.raises(RequestError, match="'a' is not a whole number"):
        _bags(feature, "a")


@pytest.mark.parametrize("encoder", [RawIdEncoder(), CrossEncoder()])
def test_encoded_raw_ids_are_any_whole_numbers(encoder: Encoder) -> None:
    feature = _sparse(encoder, encoded=True)
    assert _bags(feature, 2**63 - 1, -(2**63), "5,-6") == [[2**63 - 1], [-(2**63)], [5, -6]]
    with pytest.raises(RequestError, match="'a' is not a whole number"):
        _bags(feature, "a")


def test_raw_ids() -> None:
    feature = _sparse(RawIdEncoder())
    text = (hash_strings(["007", "9223372036854775808", "-0"]) % np.uint64(2**63 - 1)).tolist()
    assert _bags(feature, "007", "9223372036854775808", "-0", "7", 7) == [[text[0]], [text[1]], [text[2]], [7], [7]]
    assert all(0 <= value < 2**63 - 1 for value in text)


def test_vocabulary() -> None:
    encoder = VocabEncoder(words=("red", "blue", "7"), word_rows=(2, 3, 0), oov_row=1, rows=4)
    assert _bags(_sparse(encoder), "red", 7, "7", "green,blue", None) == [[2], [0], [0], [1, 3], []]
    assert _bags(_sparse(VocabEncoder(words=(), word_rows=(), oov_row=0, rows=1)), "a", None) == [[0], []]
    assert _bags(_sparse(encoder, encoded=True), 3, 4) == [[3], [1]]


def test_boundaries_are_compared_as_float32() -> None:
    feature = _sparse(BoundaryEncoder(boundaries=(0.1, 0.2, 3.0)))
    just_below = float(np.nextafter(np.float32(0.1), np.float32(0)))
    assert _bags(feature, 0.1, just_below, 0.10000000001, 3, 4, -1, float("inf"), float("nan"), None) == [[1], [0], [1], [3], [3], [0], [3], [], []]
    assert _bags(feature, "0.1,5", [0.15, None, 9]) == [[1, 3], [1, 3]]
    scaled = _sparse(BoundaryEncoder(boundaries=(0.0,), normalizer=Normalizer(method="zscore", parameters=(("mean", 5.0), ("std", 2.0)))))
    assert _bags(scaled, 4.9, 5, 6) == [[0], [1], [1]]


def test_cross_is_the_product_in_column_order() -> None:
    feature = _sparse(CrossEncoder(rows=10**6), columns=("a", "b"))
    encoded = encode([feature], {"a": ["x,y", None, 1, "x"], "b": [["p", 2], "p", "q", ""]}).sparse["f"]
    assert encoded.lengths.tolist() == [4, 0, 1, 0]
    pairs: list[tuple[object, object]] = [("x", "p"), ("x", 2), ("y", "p"), ("y", "2"), (1, "q")]
    singles = [encode([feature], {"a": [a], "b": [b]}).sparse["f"].values.tolist()[0] for a, b in pairs]
    assert encoded.values.tolist() == singles
    assert len(set(singles)) == 5


def test_a_cross_has_a_limit() -> None:
    feature = _sparse(CrossEncoder(), columns=("a", "b", "c"))
    many = list(range(50))
    with pytest.raises(RequestError, match="feature 'f': row 1: 125000 combinations, more than 65536"):
        encode([feature], {"a": [1, many], "b": [1, many], "c": [1, many]})


def test_defaults() -> None:
    feature = _sparse(HashEncoder(rows=100), default="u,v")
    assert _bags(feature, None, "a", [], "", float("nan")) == [*_bags(feature, "u,v"), *_bags(feature, "a"), *_bags(feature, "u,v") * 3]
    weighted = _sparse(BucketEncoder(rows=10), default="1:0.5,2", weighted=True)
    bag = encode([weighted], {"f": [None, "3:7", None]}).sparse["f"]
    assert bag.values.tolist() == [1, 2, 3, 1, 2]
    assert bag.weights is not None
    assert bag.weights.tolist() == [0.5, 1.0, 7.0, 0.5, 1.0]
    assert encode([_dense(2, default="3")], {"f": [None, [1, 2]]}).dense["f"].tolist() == [[3.0, 3.0], [1.0, 2.0]]
    assert encode([_dense(default="")], {"f": [None]}).dense["f"].tolist() == [[0.0]]


def test_a_default_that_is_no_value() -> None:
    with pytest.raises(RequestError, match="feature 'f': default 'x': 'x' is not a whole number"):
        _bags(_sparse(BucketEncoder(rows=10), default="x"), 1)
    for default in ("x", "1,2"):
        with pytest.raises(RequestError, match="default"):
            encode([_dense(3, default=default)], {"f": [None]})


def test_value_dim() -> None:
    assert _bags(_sparse(HashEncoder(rows=1), value_dim=2), "a,b", "a", None) == [[0, 0], [0], []]
    for count in (1, 2000):
        with pytest.raises(RequestError, match="feature 'f': row 1: 3 values, more than value_dim 2"):
            _bags(_sparse(HashEncoder(rows=1), value_dim=2), *["a", "a,b,c"] * count)


@pytest.mark.parametrize(
    ("value_dim", "value", "problem"),
    [
        (3, [1, 2], "2 numbers, not 3"),
        (3, 5, "1 numbers, not 3"),
        (1, [1, 2], "2 numbers, not 1"),
        (1, "1,2", "2 numbers, not 1"),
        (1, "abc", "'abc' is not a number"),
        (1, float("inf"), "inf is not a finite float32"),
        (1, "1e400", "inf is not a finite float32"),
        (1, 1e39, "is not a finite float32"),
        pytest.param(1, 10**5000, "'a whole number of 16610 bits' is not a number", id="huge"),
        (1, True, "True is neither text nor a number"),
        (1, {"a": 1.0}, "the values have weights, but the feature reads numbers"),
    ],
)
def test_numbers_that_are_refused(value_dim: int, value: object, problem: str) -> None:
    for copies in (0, 40):
        with pytest.raises(RequestError, match=problem) as caught:
            encode([_dense(value_dim)], {"f": [None] * (1 + copies) + [value]})
        assert caught.value.feature == "f"
        assert caught.value.row in (None, 1 + copies)


def test_normalizers() -> None:
    log = NumericEncoder(normalizer=Normalizer(method="log10", parameters=(("fill", -9.0), ("threshold", 1e-3))))
    values = [100.0, 1e-3, 0.0, -5.0, None]
    assert encode([_dense(encoder=log)], {"f": values}).dense["f"][:, 0].tolist() == [2.0, -9.0, -9.0, -9.0, -9.0]
    plain = NumericEncoder(normalizer=Normalizer(method="log10", parameters=(("threshold", 1e-3),)))
    assert encode([_dense(encoder=plain)], {"f": [0.0]}).dense["f"].tolist() == [[-3.0]]
    zero_span = NumericEncoder(normalizer=Normalizer(method="minmax", parameters=(("high", 11.0), ("low", 1.0))))
    assert encode([_dense(encoder=zero_span)], {"f": [1, 11, 6]}).dense["f"][:, 0].tolist() == [0.0, 1.0, 0.5]
    assert encode([_dense(encoder=zero_span, encoded=True)], {"f": [11]}).dense["f"].tolist() == [[11.0]]


def test_a_number_that_overflows_in_the_normalizer() -> None:
    tiny = NumericEncoder(normalizer=Normalizer(method="zscore", parameters=(("mean", 0.0), ("std", 1e-9))))
    features = [_dense(name=name, columns=(name,), encoder=tiny) for name in ("a", "b")]
    with pytest.raises(RequestError, match=r"feature 'b': row 1: 1e\+308 is not a finite float32 after the normalizer"):
        encode(features, {"a": [0, 0], "b": [0, 1e308]})


def test_columns_must_have_as_many_rows() -> None:
    features = [_sparse(RawIdEncoder(), name="a", columns=("a",)), _dense(name="b", columns=("b",))]
    with pytest.raises(RequestError, match="feature 'b': column 'b' has 3 rows, but column 'a' has 2"):
        encode(features, {"a": [1, 2], "b": [1.0, 2.0, 3.0]})
    with pytest.raises(RequestError, match="feature 'a': column 'a' has 2 rows, but num_rows is 4"):
        encode(features, {"a": [1, 2], "b": [1.0, 2.0]}, 4)


def test_a_column_that_is_not_there() -> None:
    with pytest.raises(RequestError, match="feature 'f': column 'f' is missing; there are: g"):
        encode([_sparse(RawIdEncoder())], {"g": [1]})


def test_arrays_and_jagged_are_columns() -> None:
    feature = _sparse(RawIdEncoder())

    def values(data: object) -> tuple[list[int], list[int]]:
        bag = encode([feature], {"f": data}).sparse["f"]  # type: ignore[dict-item]
        return bag.values.tolist(), bag.lengths.tolist()

    assert values(np.array([1, 2], np.int32)) == ([1, 2], [1, 1])
    assert values(np.array([[1, 2], [3, 4]], np.uint8)) == ([1, 2, 3, 4], [2, 2])
    assert values(np.array([1.0, np.nan])) == ([1], [1, 0])
    assert values(np.array(["5", "7"])) == ([5, 7], [1, 1])
    assert values(np.array(["5", None, 6], dtype=object)) == ([5, 6], [1, 0, 1])
    assert values((1, None)) == ([1], [1, 0])
    assert values(Jagged(np.array([1, 2, 3]), np.array([2, 0, 1], np.int32))) == ([1, 2, 3], [2, 0, 1])
    assert values(Column(Texts.from_strings(["1", "2"]), np.array([0, 2], np.int32))) == ([1, 2], [0, 2])


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (Jagged(np.array([1, 2, 3]), np.array([1, 1], np.int32)), "lengths sum to 2, but there are 3 values"),
        (Jagged(np.array([1, 2, 3]), np.array([3, 1], np.int32)), "lengths sum to 4, but there are 3 values"),
        (Jagged(np.array([1, 2, 3]), np.array([4, -1], np.int32)), "row 1: length -1 is negative"),
        (Jagged(np.array([1, 2, 3]), np.array([1.5, 1.5])), "lengths are float64"),
        (Jagged(np.array([1, 2]), np.array([[1, 1]], np.int32)), r"lengths are int32 \[1, 2\]"),
        (Jagged(np.array([1, 2]), np.array([1, 1], np.int32), np.array([1.0], np.float32)), "values and weights are not two arrays"),
        (np.array([True, False]), "values of type bool are not numbers"),
        (np.array([b"a", b"b"]), "values of type .S1 are not numbers"),
        (np.array(["2020-01-01"], dtype="datetime64[D]"), "are not numbers"),
        (np.zeros((1, 1, 1)), "an array of shape"),
        (np.array(5), "an array of shape"),
        ("text", "a column is 'text', not an array"),
        (np.array([2**63], np.uint64), "9223372036854775808 does not fit 64 bits"),
        (np.array([2.0**24], np.float32), "is too large for a float"),
    ],
)
def test_columns_that_are_refused(data: object, problem: str) -> None:
    with pytest.raises(RequestError, match=problem) as caught:
        encode([_sparse(RawIdEncoder())], {"f": data})  # type: ignore[dict-item]
    assert str(caught.value).startswith("feature 'f': ")


def test_nothing_is_written_to() -> None:
    ids, numbers, lengths = np.array([1, 2]), np.array([1.0, np.nan]), np.array([1, 1], np.int32)
    for array in (ids, numbers, lengths):
        array.setflags(write=False)
    log = NumericEncoder(normalizer=Normalizer(method="zscore", parameters=(("mean", 5.0), ("std", 2.0))))
    features = [
        _sparse(BucketEncoder(rows=2, oov_row=0), name="a", default="1"),
        _dense(name="b", columns=("n",), default="3", encoder=log),
        _dense(name="c", columns=("n",), default="4"),
        _sparse(HashEncoder(rows=5), name="d"),
        _sparse(RawIdEncoder(), name="e", columns=("j",)),
    ]
    for _ in range(2):
        encoded = encode(features, {"f": ids, "n": numbers, "j": Jagged(ids, lengths)})
        assert encoded.dense["b"].tolist() == [[-2.0], [-1.0]]
        assert encoded.dense["c"].tolist() == [[1.0], [4.0]]
    assert numbers[0] == 1.0


def test_an_odd_request_answers_the_same_every_time() -> None:
    feature = _sparse(HashEncoder(rows=10**9), default="d")
    rows: list[dict[str, object]] = [{"f": "ä,ö"}, {}, {"f": 5}, {"f": [None, "z"]}]
    first = encode([feature], *columns_from_rows([feature], rows)).sparse["f"]
    encode([feature], *columns_from_rows([feature], [{"f": str(number)} for number in range(3000)]))
    again = encode([feature], *columns_from_rows([feature], rows)).sparse["f"]
    assert first.values.tolist() == again.values.tolist()


def test_dense_out_of_sparse_and_dense_order() -> None:
    features = [_dense(name="d2"), _sparse(RawIdEncoder(), name="s1"), _dense(name="d1"), _sparse(RawIdEncoder(), name="s0")]
    encoded = encode(features, {"f": [1]})
    assert (list(encoded.sparse), list(encoded.dense)) == (["s1", "s0"], ["d2", "d1"])


def test_no_features() -> None:
    encoded = encode([], {}, 3)
    assert (encoded.num_rows, encoded.sparse, encoded.dense) == (3, {}, {})


def test_what_is_prepared_goes_with_its_feature() -> None:
    gc.collect()
    before = len(_prepared)
    feature = _sparse(VocabEncoder(words=("a",), word_rows=(0,), oov_row=1, rows=2))
    _bags(feature, "a")
    assert len(_prepared) == before + 1
    del feature
    gc.collect()
    assert len(_prepared) == before
