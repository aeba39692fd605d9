"""Answers to requests of the ordinary kind, many by one call that checks them and looks their rows up."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter
from typing import Self

import torch
from torch import Tensor

from emberline.program_inputs import program_outputs
from emberline.schema import ModelSchema
from emberline.serving.lookup import DirectReader
from emberline.serving.lookup.layout import Layout, Span
from emberline.serving.observe.stages import UNSEEN, Stages
from emberline.serving.packed_request import PackedRequest
from emberline.serving.program_choice import ROLES, Programs
from emberline.serving.sources import Source
from emberline.serving.unknown import UnknownCounter

_MOST_PLANS = 64
"""For as many sets of answers it is remembered how they are made: callers may think of any."""
Answers = dict[str, Tensor]


@dataclass(frozen=True, eq=False, slots=True)
class _Plan:
    """How some answers are made.

    Args:
        names: of the answers, in the model's order.
        reader: looks up.
        columns: where each answer lies in what it finds; None where programs make them of it.
    """

    names: tuple[str, ...]
    reader: DirectReader
    columns: tuple[tuple[str, int, int], ...] | None


class DirectAnswers:
    """Answers requests that need no second look; any number of threads may use it.

    Make one with `DirectAnswers.of`.
    """

    def __init__(self, schema: ModelSchema, source: Source, programs: Programs, reader: DirectReader) -> None:
        self._schema, self._source, self._programs, self._reader = schema, source, programs, reader
        self._outputs = program_outputs(schema, "outputs")
        self._names = self._outputs + program_outputs(schema, "groups")
        self._columns = {name: spans for program in programs.by_role.values() for name, spans in program.columns.items()}
        self._plans: dict[frozenset[str], _Plan] = {}

    @classmethod
    def of(cls, schema: ModelSchema, source: Source, programs: Programs) -> Self | None:
        """For a model; None where every request takes the long way.

        Args:
            schema: the model's description.
            source: of all its features.
            programs: its programs.
        """
        reader = DirectReader.of(schema, source.lookup, source.find_rows, Layout.side_by_side(schema))
        return None if reader is None else cls(schema, source, programs, reader)

    def __call__(
        self, requests: Sequence[PackedRequest], wanted: Sequence[Collection[str] | None], counter: UnknownCounter, stages: Stages = UNSEEN
    ) -> list[Answers | None]:
        """The answers of each request; None for one that must go the long way.

        Args:
            requests: any number.
            wanted: the names of the answers that each wants; None for the model's outputs.
            counter: counts the ids of those that are answered.
            stages: learn how long it takes.
        """
        if not requests:
            return []
        first = wanted[0]
        if all(names is first or names == first for names in wanted):
            plan = self._plan(self._outputs if first is None else first)
            return [None] * len(requests) if plan is None else self._answer(plan, requests, counter, stages)
        found: list[Answers | None] = [None] * len(requests)
        names = [self._outputs if given is None else given for given in wanted]
        own = [place for place, asked in enumerate(names) if all(name in self._names for name in asked)]
        plan = self._plan({name for place in own for name in names[place]})
        if plan is not None:
            for place, answer in zip(own, self._answer(plan, [requests[place] for place in own], counter, stages), strict=True):
                found[place] = None if answer is None else {name: value for name, value in answer.items() if name in names[place]}
        return found

    def inputs(self, request: PackedRequest, counter: UnknownCounter) -> Answers | None:
        """What the model's programs take for a request; None where it must go the long way. See `Engine.program_inputs`."""
        found, (num_rows,), counts = self._inputs((request,))
        if num_rows < 0:
            return None
        self._count(self._reader, counts, counter)
        return found

    def _plan(self, wanted: Collection[str]) -> _Plan | None:
        """How to make some answers; None where there are none, or one is not among those of programs."""
        key = frozenset(wanted)
        plan = self._plans.get(key)
        if plan is None:
            if not key or not key.issubset(self._names):
                return None
            if len(self._plans) >= _MOST_PLANS:
                self._plans.clear()
            plan = self._plans[key] = self._new_plan(tuple(name for name in self._names if name in key))
        return plan

    def _new_plan(self, names: tuple[str, ...]) -> _Plan:
        if all(name in self._columns for name in names):
            layout = Layout.of(self._schema, [span for name in names for span in self._columns[name]])
            reader = None if layout is None else DirectReader.of(self._schema, self._source.lookup, self._source.find_rows, layout)
            if reader is not None:
                starts = [0]
                for name in names:
                    starts.append(starts[-1] + _width(self._columns[name]))
                return _Plan(names, reader, tuple((name, *ends) for name, ends in zip(names, pairwise(starts), strict=True)))
        return _Plan(names, self._reader, None)

    def _answer(self, plan: _Plan, requests: Sequence[PackedRequest], counter: UnknownCounter, stages: Stages) -> list[Answers | None]:
        reader = plan.reader
        if plan.columns is None:
            answers, counts = self._by_programs(plan, requests, stages)
        else:
            started = perf_counter()
            found, _, _, counts = reader.by_request(requests)
            stages.lookup.add(perf_counter() - started)
            answers = [None if own is None else _cut(own, plan.columns) for own in found]
        self._count(reader, counts, counter)
        return answers

    @staticmethod
    def _count(reader: DirectReader, counts: Sequence[int], counter: UnknownCounter) -> None:
        if counts:
            counter.add(zip(reader.tables, counts[::2], counts[1::2], strict=True))

    def _by_programs(self, plan: _Plan, requests: Sequence[PackedRequest], stages: Stages) -> tuple[list[Answers | None], Sequence[int]]:
        with torch.inference_mode():
            started = perf_counter()
            inputs, num_rows, counts = self._inputs(requests)
            looked_up = perf_counter()
            stages.lookup.add(looked_up - started)
            own = [rows for rows in num_rows if rows >= 0]
            if not own:
                return [None] * len(requests), ()
            made = self._programs.run(inputs, plan.names, ROLES)
            stages.program.add(perf_counter() - looked_up)
            if len(requests) == 1:
                return [{name: made[name] for name in plan.names}], counts
            parts = {name: iter(torch.split(made[name], own)) for name in plan.names}
        return [None if rows < 0 else {name: next(part) for name, part in parts.items()} for rows in num_rows], counts

    def _inputs(self, requests: Sequence[PackedRequest]) -> tuple[Answers, Sequence[int], Sequence[int]]:
        """What programs take for the requests that can be answered, one after the other; rows of each or -1; and counts, as `Found` has them."""
        pooled, dense, num_rows, counts = self._reader.together(requests)
        total = sum(rows for rows in num_rows if rows >= 0)
        if dense is None:
            dense = pooled.new_empty((pooled.shape[0], 0))
        if total < pooled.shape[0]:
            pooled, dense = pooled[:total], dense[:total]
        return {"pooled": pooled, "dense": dense}, num_rows, counts


def _width(spans: Sequence[Span]) -> int:
    return sum(stop - first for _, first, stop in spans)


def _cut(answer: Tensor, columns: tuple[tuple[str, int, int], ...]) -> Answers:
    if len(columns) == 1:
        return {columns[0][0]: answer}
    return {name: answer[:, first:stop] for name, first, stop in columns}
