"""How large one request may be."""

from dataclasses import replace

import numpy as np
import pytest

from emberline.errors import TooLargeError
from emberline.schema import HashEncoder, LookupSpec, ModelSchema, Pooling, StreamSpec, TableSpec
from emberline.serving.limits import LimitChecker, RequestLimits
from emberline.serving.request import PackedRequest
from tests.serving.conftest import sparse

LIMITS = RequestLimits(rows=5, ids=10, padded_steps=12)


def schema(*, padded: bool) -> ModelSchema:
    """A pooled feature, and a sequence of one id a step."""
    features = (sparse("user", HashEncoder(rows=9)), replace(sparse("clicks", HashEncoder(rows=9), value_dim=1), sequence=True))
    return ModelSchema(
        features=features,
        tables=(TableSpec(name="t", rows=9, dim=2),),
        lookups=(LookupSpec(key="user", feature="user", table="t", pooling=Pooling.SUM, dim=2),),
        groups=(),
        sequence_lookups=(LookupSpec(key="clicks", feature="clicks", table="t", pooling=Pooling.SUM, dim=2),),
        streams=(StreamSpec(features=("clicks",), padded=padded),),
    )


def request(users: list[int], clicks: list[int], *, steps: bool = False) -> PackedRequest:
    return PackedRequest(
        ids=np.zeros(sum(users) + sum(clicks), np.int64),
        lengths=np.array(users + clicks, np.int32),
        steps=np.array(clicks, np.int32) if steps else None,
    )


@pytest.mark.parametrize("steps", [True, False])
@pytest.mark.parametrize(
    ("users", "clicks", "problem"),
    [
        ([1] * 5, [0] * 5, None),
        ([1] * 6, [0] * 6, "the request has 6 rows; this server takes at most 5"),
        ([10, 0], [0, 0], None),
        ([10, 0], [1, 0], "the request has 11 ids; this server takes at most 10"),
        ([0] * 3, [4, 0, 0], None),
        ([0] * 3, [5, 0, 0], '3 rows padded to the 5 steps of the longest are 15 steps of "clicks"; this server takes at most 12'),
        ([9, 0, 0], [0, 0, 0], None),
        ([], [], None),
    ],
)
def test_requests_are_refused_with_limit_and_size(users: list[int], clicks: list[int], problem: str | None, steps: bool) -> None:
    checker, asked = LimitChecker(schema(padded=True), LIMITS), request(users, clicks, steps=steps)
    if problem is None:
        checker.check(asked, len(users))
        return
    with pytest.raises(TooLargeError, match=f"^{problem}"):
        checker.check(asked, len(users))


def test_steps_that_nothing_pads_are_only_ids() -> None:
    LimitChecker(schema(padded=False), LIMITS).check(request([0] * 3, [9, 0, 0], steps=True), 3)


def test_the_longest_of_a_tiled_request_counts_for_all_of_its_rows() -> None:
    tiled = replace(request([1], [4], steps=True), rows_per_user=np.array([4], np.int32))
    with pytest.raises(TooLargeError, match=r"4 rows padded to the 4 steps of the longest are 16 steps"):
        LimitChecker(schema(padded=True), LIMITS).check(tiled, 4)


@pytest.mark.parametrize("steps", [np.array([1.5e30, 2, 3]), np.array([1, 2]), np.array([], np.int32), np.array([True, False, True])])
def test_what_is_malformed_is_left_to_the_validator(steps: np.ndarray[tuple[int], np.dtype[np.generic]]) -> None:
    LimitChecker(schema(padded=True), LIMITS).check(PackedRequest(steps=steps), 3)


def test_counts_beyond_64_bits_are_refused() -> None:
    steps = np.full(5, 2**62, np.int64)
    with pytest.raises(TooLargeError, match=f"5 rows padded to the {2**62} steps of the longest are {5 * 2**62} steps"):
        LimitChecker(schema(padded=True), LIMITS).check(PackedRequest(steps=steps), 5)
