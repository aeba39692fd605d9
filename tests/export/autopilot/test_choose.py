from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emberline.errors import ExportError
from emberline.export.autopilot.choose import after, choose_for_budget, ordered_steps, total_bytes
from emberline.export.autopilot.options import Candidate, Goal, index_bytes, narrower_types
from emberline.schema import TableKind, TableSpec

TYPES = ("fp32", "fp16", "int8", "int4")


def candidate(place: int, num_bytes: int, change: float) -> Candidate:
    return Candidate(type=TYPES[place], num_bytes=num_bytes, output_change=change, metrics={})


@st.composite
def tables(draw: st.DrawFn) -> dict[str, list[Candidate]]:
    """Up to four tables, whose candidates take ever fewer bytes; what they harm is any number, also less than the one before."""
    found = {}
    for name in "abcd"[: draw(st.integers(0, 4))]:
        sizes = sorted(draw(st.sets(st.integers(1, 200), min_size=1, max_size=4)), reverse=True)
        found[name] = [candidate(place, size, draw(st.floats(0, 10)) if place else 0.0) for place, size in enumerate(sizes)]
    return found


def harm(chosen: dict[str, Candidate]) -> float:
    return sum(one.harm for one in chosen.values())


@given(tables(), st.integers(0, 900))
def test_a_budget_is_held_and_harm_is_at_most_one_step_from_the_least(options: dict[str, list[Candidate]], budget: int) -> None:
    every = [dict(zip(options, picked, strict=True)) for picked in product(*options.values())]
    allowed = [one for one in every if total_bytes(one) <= budget]
    chosen = choose_for_budget(options, budget)
    if chosen is None:
        assert not allowed
        return
    assert total_bytes(chosen) <= budget
    steps = ordered_steps(options)
    assert harm(chosen) <= min(map(harm, allowed)) + max([step.harm for step in steps], default=0.0) + 1e-9
    for table, candidates in options.items():  # nobody could still be given what is left
        for one in candidates:
            assert one.harm >= chosen[table].harm or total_bytes({**chosen, table: one}) > budget


@given(tables())
def test_each_number_of_steps_is_the_best_there_is_for_its_bytes(options: dict[str, list[Candidate]]) -> None:
    steps = ordered_steps(options)
    every = [dict(zip(options, picked, strict=True)) for picked in product(*options.values())]
    for taken in range(len(steps) + 1):
        now = after(options, steps[:taken])
        assert harm(now) <= min(harm(one) for one in every if total_bytes(one) <= total_bytes(now)) + 1e-9
    assert total_bytes(after(options, steps)) == sum(one[-1].num_bytes for one in options.values())


def test_types_that_save_nothing_are_no_candidates() -> None:
    def spec(dim: int, dtype: str = "fp32", kind: TableKind = TableKind.STATIC) -> TableSpec:
        return TableSpec(name="t", rows=10, dim=dim, dtype=dtype, kind=kind)

    assert narrower_types(spec(16)) == ["fp16", "int8", "int4"]
    assert narrower_types(spec(4)) == ["fp16"]  # int8 and int4 take 8 bytes too
    assert narrower_types(spec(1)) == ["fp16"]
    assert narrower_types(spec(16, "fp16")) == ["int8", "int4"]
    assert narrower_types(spec(2, "fp16")) == []
    assert index_bytes([spec(4), spec(4, kind=TableKind.ZCH), spec(4, kind=TableKind.DYNAMIC)]) == 2 * 230


def test_a_goal_names_something() -> None:
    with pytest.raises(ExportError, match="--quantize auto needs to know what for"):
        Goal()
    with pytest.raises(ExportError, match="--memory-budget must be more than nothing, not 0"):
        Goal(memory_budget=0)
