"""What requests tell of sequences: what is taken, what may be left out, and what is refused, by feature and row."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from emberline.encoding import columns_from_rows, encode
from emberline.errors import RequestError
from emberline.schema import HashEncoder, LookupSpec, ModelSchema, NumericEncoder, Pooling, StreamSpec, TableSpec
from emberline.serving.encoded import pack_encoded
from emberline.serving.request import CheckedRequest, PackedRequest, RequestValidator
from tests.serving.conftest import dense, make_steps_toy, sparse


def schema_of(*kinds: tuple[str, int], numbers: int = 0, alike: bool = False, most: int = 0) -> ModelSchema:
    """Sparse sequences of so many ids a step (0: any), and a dense one of so many numbers."""
    features = [replace(sparse(name, HashEncoder(rows=10), value_dim=value_dim), sequence=True, sequence_length=most) for name, value_dim in kinds]
    if numbers:
        features.append(replace(dense("n", numbers), sequence=True, sequence_length=most))
    return ModelSchema(
        features=tuple(features),
        tables=(TableSpec(name="t", rows=10, dim=2),),
        lookups=(),
        groups=(),
        sequence_lookups=tuple(LookupSpec(key=name, feature=name, table="t", pooling=Pooling.SUM, dim=2) for name, _ in kinds),
        streams=(StreamSpec(features=tuple(feature.name for feature in features), padded=True),) if alike else (),
    )


def check(schema: ModelSchema, **arrays: list[float]) -> CheckedRequest:
    types = {"ids": np.int64, "dense": np.float32, "dense_steps": np.float32}
    given: dict[str, Any] = {name: np.array(values, types.get(name, np.int32)) for name, values in arrays.items()}
    return RequestValidator(schema).check(PackedRequest(**given))


def test_each_id_is_a_step_where_nothing_else_is_told() -> None:
    found = check(schema_of(("f", 1), ("g", 1)), ids=[1, 2, 3, 4], lengths=[2, 0, 1, 1])
    assert (found.num_rows, found.steps.tolist(), found.step_lengths, found.dense_steps.size) == (2, [2, 0, 1, 1], None, 0)
    told = check(schema_of(("f", 1), ("g", 1)), ids=[1, 2, 3, 4], lengths=[2, 0, 1, 1], steps=[2, 0, 1, 1], step_lengths=[1, 1, 1, 1])
    assert (told.steps.tolist(), told.step_lengths) == (found.steps.tolist(), None)


def test_steps_without_ids_are_told() -> None:
    found = check(schema_of(("f", 1)), ids=[5], lengths=[1, 0], steps=[2, 1], step_lengths=[0, 1, 0])
    assert found.steps.tolist() == [2, 1]
    assert found.step_lengths is not None
    assert found.step_lengths.tolist() == [0, 1, 0]


def test_numbers_of_steps_alone_tell_the_rows() -> None:
    found = check(schema_of(numbers=2), steps=[2, 0, 1], dense_steps=[1, 2, 3, 4, 5, 6])
    assert (found.num_rows, found.dense_steps.tolist(), found.ids.size) == (3, [1, 2, 3, 4, 5, 6], 0)


def test_a_request_without_rows() -> None:
    found = check(schema_of(("f", 0), numbers=1), ids=[], lengths=[], steps=[], step_lengths=[], dense_steps=[])
    assert (found.num_rows, found.steps.size, found.step_lengths) == (0, 0, None)


ANY = schema_of(("f", 0))
BOTH = schema_of(("f", 1), ("g", 0), numbers=1, alike=True, most=2)
F = {"ids": [1, 2], "lengths": [1, 1]}


@pytest.mark.parametrize(
    ("schema", "arrays", "message"),
    [
        (ANY, F, "^steps is missing$"),
        (ANY, {**F, "steps": [1, 1]}, "^step_lengths is missing$"),
        (
            schema_of(("f", 1)),
            {**F, "step_lengths": [1, 1]},
            "^step_lengths is there, but steps, which tells of how many steps each row has, is missing$",
        ),
        (schema_of(numbers=1), {"dense_steps": [1]}, "^steps is missing$"),
        (schema_of(numbers=1), {"steps": [1]}, "^dense_steps is missing$"),
        (schema_of(numbers=1), {"steps": [1, 1], "dense_steps": [1]}, "^dense_steps holds 1 numbers, but steps tells of 2$"),
        (schema_of(numbers=1), {"steps": [1], "dense_steps": [1], "step_lengths": [1]}, "^step_lengths: the model takes none, found 1$"),
        (schema_of(("f", 1)), {**F, "dense_steps": [1]}, "^dense_steps: the model takes none, found 1$"),
        (schema_of(numbers=2), {"steps": [0, 2], "dense_steps": [1, 2, 3, np.inf]}, "^feature 'n': row 1: dense_steps: inf is not a finite number$"),
        (ANY, {**F, "steps": [1, -1], "step_lengths": [1]}, "^feature 'f': row 1: steps: -1 is negative$"),
        (ANY, {**F, "steps": [1, 2], "step_lengths": [1, 1]}, "^step_lengths tells of 2 steps, but steps of 3$"),
        (ANY, {**F, "steps": [1, 1], "step_lengths": [2, 0]}, "^feature 'f': row 0: lengths tells of 1 ids, but its steps hold 2$"),
        (ANY, {**F, "steps": [1, 2], "step_lengths": [1, 2, -1]}, "^feature 'f': row 1: step_lengths: -1 is negative$"),
        (
            schema_of(("f", 2)),
            {"ids": [1] * 3, "lengths": [0, 3], "steps": [0, 1], "step_lengths": [3]},
            "^feature 'f': row 1: step_lengths: a step of 3 ids, but it takes at most 2 a step$",
        ),
        (ANY, {**F, "steps": [1], "step_lengths": [1]}, "^lengths tells of 2 rows, but steps of 1$"),
        (
            schema_of(("f", 1), numbers=1),
            {**F, "steps": [1, 1, 1], "dense_steps": []},
            r"steps: 3 numbers are not a whole number for each of 2 sequences",
        ),
        (
            schema_of(("f", 1)),
            {**F, "steps": [1, 2]},
            "^feature 'f': row 1: lengths tells of 1 ids, but each step has one id, as step_lengths was left out, so 2$",
        ),
        (schema_of(("f", 1), most=2), {"ids": [1] * 3, "lengths": [0, 3]}, "^feature 'f': row 1: lengths: 3 ids, but it takes at most 2$"),
        (
            schema_of(("f", 0), most=2),
            {"ids": [1], "lengths": [0, 1], "steps": [0, 3], "step_lengths": [1, 0, 0]},
            "^feature 'f': row 1: steps: 3 steps, but it takes at most 2$",
        ),
        (
            BOTH,
            {"ids": [1, 2, 3], "lengths": [1, 1, 1, 0], "steps": [1, 1, 1, 0, 1, 1], "step_lengths": [1, 1, 1], "dense_steps": [1, 2]},
            "^feature 'g': row 1: steps: 0 steps, but 'f', which stands beside it in a group, has 1$",
        ),
        (
            BOTH,
            {"ids": [1, 2, 3], "lengths": [1, 1, 1, 0], "steps": [1, 1, 1, 1, 0, 1], "step_lengths": [1, 1, 1, 0], "dense_steps": [1]},
            "^feature 'n': row 0: steps: 0 steps, but 'f', which stands beside it in a group, has 1$",
        ),
        (ModelSchema(features=(), tables=(), lookups=(), groups=()), {"steps": [1]}, "^steps: the model takes none, found 1$"),
    ],
)
def test_what_does_not_fit_is_refused(schema: ModelSchema, arrays: dict[str, list[float]], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        check(schema, **arrays)


def test_arrays_of_wrong_types_and_shapes_are_refused() -> None:
    lengths, ids = np.array([1, 1], np.int32), np.array([1, 2], np.int64)
    for wrong in (np.array([1.0, 1.0]), np.array([[1], [1]]), np.array([1, 2**40])):
        with pytest.raises(RequestError, match=r"^steps"):
            RequestValidator(ANY).check(PackedRequest(ids, lengths, steps=wrong, step_lengths=lengths))


def test_encoded_rows_are_packed_sequence_after_sequence() -> None:
    schema = make_steps_toy().schema
    rows: list[dict[str, object]] = [
        {"user": 100, "clicks": [100, 5], "words": [{"a": 0.5, "b": 1}, {}], "prices": [[1, 2], [3, 4]], "age": 3},
        {"clicks": None, "words": None, "prices": None},
        {"clicks": [-7], "words": [{"a": 2}], "prices": [[5, 6]], "age": 1},
    ]
    request = pack_encoded(schema, encode(schema.features, *columns_from_rows(schema.features, rows)))
    found = RequestValidator(schema).check(request)
    assert found.steps.tolist() == [2, 0, 1] * 3
    assert found.lengths.tolist() == [1, 0, 0, 2, 0, 1, 2, 0, 1]
    assert found.step_lengths is not None
    assert found.step_lengths.tolist() == [1, 1, 1, 2, 0, 1]
    assert found.dense_steps.tolist() == [1, 2, 3, 4, 5, 6]
    assert found.ids[:4].tolist() == [100, 100, 5, -7]
    assert found.weights is not None
    assert found.weights[4:].tolist() == [0.5, 1, 2]


def test_rows_of_one_id_a_step_leave_steps_out() -> None:
    features = tuple(replace(sparse(name, HashEncoder(rows=9), value_dim=1), sequence=True) for name in "fg")
    schema = ModelSchema(features=features, tables=(), lookups=(), groups=())
    plain = pack_encoded(schema, encode(features, *columns_from_rows(features, [{"f": ["a", "b"], "g": []}])))
    assert (plain.steps, plain.step_lengths, plain.dense_steps) == (None, None, None)
    with_gap = pack_encoded(schema, encode(features, *columns_from_rows(features, [{"f": ["a", None], "g": []}])))
    assert with_gap.steps is not None
    assert with_gap.step_lengths is not None
    assert (with_gap.steps.tolist(), with_gap.step_lengths.tolist()) == ([2, 0], [1, 0])


def test_dense_features_are_those_without_steps() -> None:
    schema = make_steps_toy().schema
    assert [feature.name for feature in schema.dense_features] == ["age"]
    assert (schema.dense_dim, schema.dense_sequences[0].encoder) == (1, NumericEncoder())


def test_steps_beyond_64_bits_do_not_wrap_round_to_what_came() -> None:
    width, count = 274_177, 67_280_421_310_721  # their product is 2**64 + 1
    most = 2**31 - 1
    steps = np.array([most] * (count // most) + [count % most], np.int32)
    with pytest.raises(RequestError, match=f"^dense_steps holds 1 numbers, but steps tells of {2**64 + 1}$"):
        RequestValidator(schema_of(numbers=width)).check(PackedRequest(steps=steps, dense_steps=np.zeros(1, np.float32)))
