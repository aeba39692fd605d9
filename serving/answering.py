"""From requests to answers, for one model: many become one batch, which is answered at once and split again."""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Self

import torch
from torch import Tensor

from emberline.errors import RequestError, ServingError
from emberline.program_inputs import LOOKUP_PREFIX
from emberline.schema import ModelSchema
from emberline.serving.artifact import KNOWN, Artifact
from emberline.serving.batching import BatchLayout, MergedBatch, merge
from emberline.serving.device_answers import DeviceAnswers
from emberline.serving.device_request import DeviceRequest
from emberline.serving.direct_answers import DirectAnswers
from emberline.serving.full_inputs import FullInputMaker
from emberline.serving.inputs import InputMaker
from emberline.serving.lookup import BagRows, Bags, LookupBackend
from emberline.serving.observe.stages import UNSEEN
from emberline.serving.program import PROGRAM_FAILURES
from emberline.serving.program_choice import ROLES, TILED_ROLES, Programs
from emberline.serving.request import CheckedRequest, PackedRequest, RequestValidator
from emberline.serving.sources import Source, Sources
from emberline.serving.tile_reading import TileReader
from emberline.serving.unknown import UnknownCounter, UnknownRefuser

_LOG = logging.getLogger(__name__)
Rows = tuple[BagRows, ...]
"""The rows that a batch's ids read: all of them, or, of tiled requests, those of the users' ids and those of the others."""


@dataclass(frozen=True, eq=False)
class View:
    """All that a delta can change: a request reads one from its beginning to its end.

    Args:
        artifact: what is open.
        sources: where its rows are found.
        programs: of it.
        direct: answers requests of the ordinary kind; None where none can be answered so.
    """

    artifact: Artifact
    sources: Sources
    programs: Programs
    direct: DirectAnswers | None = None

    @classmethod
    def of(cls, artifact: Artifact, lookup: LookupBackend, programs: Programs) -> Self:
        """All that requests need of an artifact that is open.

        Args:
            artifact: it.
            lookup: has its tables.
            programs: of it.
        """
        sources = Sources.of(artifact.schema, artifact.remaps, lookup)
        return cls(artifact, sources, programs, DirectAnswers.of(artifact.schema, sources.whole, programs))


class Answerer:
    """Answers requests from whichever view it is given: what it holds of a model no delta changes, but for the counts of ids.

    Args:
        schema: the model's description.
        counted: names of the tables whose ids are counted.
        device: where tables and programs are.

    Attributes:
        counter: ids asked for.
        stages: seconds of each batch; until others are set, nobody reads them.
        output_names: the model's outputs.
        lookup_names: `lookup.<group>` for each group.
        answer_names: all of these, and `known` where there are ids.
    """

    def __init__(self, schema: ModelSchema, counted: Collection[str], device: torch.device) -> None:
        self.counter = UnknownCounter(counted)
        self.stages = UNSEEN
        self._schema, self._device = schema, device
        self._refuse = UnknownRefuser(schema)
        self._validator = RequestValidator(schema)
        self._device_answers = DeviceAnswers(schema, device)
        self._layout = BatchLayout.of(schema)
        self._make_inputs, self._tiled = InputMaker(schema), TileReader(schema)
        self._groups = {LOOKUP_PREFIX + group.name: group for group in schema.groups}
        self.output_names = tuple(output.name for output in schema.outputs)
        self.lookup_names = tuple(self._groups)
        self.answer_names = self.output_names + self.lookup_names + ((KNOWN,) if self._layout.num_features else ())

    def check(self, request: PackedRequest) -> CheckedRequest:
        """The request, checked; see `Engine.check`."""
        return self._validator.check(request)

    def one(self, view: View, request: PackedRequest, names: Sequence[str]) -> dict[str, Tensor]:
        """The named answers of one request.

        Raises:
            RequestError: the request is malformed, or has ids that the model refuses.
        """
        if (direct := self._directly(view, (request,), (names,))[0]) is not None:
            return direct
        batch, rows = self._one_batch(view, request, names)
        found = self._compute(view, batch, rows, names)
        if batch.sides is None:
            return found
        # Its ids were looked up side after side, and users without rows may have more steps than any row.
        return {name: self._split(batch, name, answer)[0] for name, answer in found.items()}

    def many(
        self, view: View, requests: Sequence[PackedRequest | DeviceRequest], answers: Sequence[Collection[str] | None] | None
    ) -> list[dict[str, Tensor] | ServingError]:
        """Answers or an error for each request; see `Engine.predict_many`."""
        wanted = list(answers) if answers is not None else [None] * len(requests)
        on_host = [request for request in requests if isinstance(request, PackedRequest)]
        return self._on_host(view, on_host, wanted) if len(on_host) == len(requests) else self._on_device(view, requests, wanted)

    def _on_device(
        self, view: View, requests: Sequence[PackedRequest | DeviceRequest], wanted: Sequence[Collection[str] | None]
    ) -> list[dict[str, Tensor] | ServingError]:
        """Answers or an error for each request, some of which are on the device. Those that need a second look come to the host for it."""
        there = [(place, request) for place, request in enumerate(requests) if isinstance(request, DeviceRequest)]
        names = [wanted[place] for place, _ in there]
        try:
            made = self._device_answers(view.sources.whole, view.programs, [request for _, request in there], names, self.counter)
        except PROGRAM_FAILURES:
            made = [None] * len(there)
        found = {place: answer for (place, _), answer in zip(there, made, strict=True) if answer is not None}
        left = [(place, request) for place, request in enumerate(requests) if place not in found]
        on_host = [request.to_host() if isinstance(request, DeviceRequest) else request for _, request in left]
        others = iter(self._on_host(view, on_host, [wanted[place] for place, _ in left]) if left else ())
        return [found[place] if place in found else next(others) for place in range(len(requests))]

    def _on_host(
        self, view: View, requests: Sequence[PackedRequest], wanted: Sequence[Collection[str] | None]
    ) -> list[dict[str, Tensor] | ServingError]:
        """Answers or an error for each request that is in the host's memory."""
        found = self._directly(view, requests, wanted)
        left = [place for place, answer in enumerate(found) if answer is None]
        others = iter(self._the_long_way(view, [requests[place] for place in left], [wanted[place] for place in left]) if left else ())
        return [next(others) if answer is None else answer for answer in found]

    def _the_long_way(
        self, view: View, requests: Sequence[PackedRequest], wanted: Sequence[Collection[str] | None]
    ) -> list[dict[str, Tensor] | ServingError]:
        """Answers or an error for each request, whatever is in them."""
        results: list[dict[str, Tensor] | ServingError] = []
        good: list[tuple[int, CheckedRequest, Collection[str]]] = []
        for place, (request, names) in enumerate(zip(requests, wanted, strict=True)):
            try:
                good.append((place, self.check(request), self._check_names(names)))
                results.append({})
            except ServingError as error:
                results.append(error)
        tiled = [item for item in good if item[1].tile is not None]
        for together in ([item for item in good if item[1].tile is None], tiled) if tiled else (good,):
            if together:
                found = self._answer(view, [request for _, request, _ in together], [names for _, _, names in together])
                for (place, _, _), answer in zip(together, found, strict=True):
                    results[place] = answer
        return results

    def program_inputs(self, view: View, request: PackedRequest) -> dict[str, Tensor]:
        """What programs take for a request; see `Engine.program_inputs`."""
        with torch.inference_mode():
            if view.direct is not None and (direct := view.direct.inputs(request, self.counter)) is not None:
                return direct
            batch, rows = self._one_batch(view, request, self.output_names)
            return self._inputs(view, rows, batch)

    def full_inputs(self, view: View, request: PackedRequest) -> dict[str, Tensor]:
        """What `full` programs take for a request; see `Engine.full_inputs`."""
        batch, rows = self._one_batch(view, request, self.output_names, count=False)
        return FullInputMaker(self._schema)(rows[0], batch.request) if batch.sides is None else self._tiled.full_inputs(rows, batch)

    def _one_batch(self, view: View, request: PackedRequest, names: Sequence[str], *, count: bool = True) -> tuple[MergedBatch, Rows]:
        checked = self.check(request)
        batch = self._merge([checked])
        rows = self._rows_of(view, batch, count=count)
        for error in self._refused(rows, batch, [checked], [names]).values():
            raise error
        return batch, rows

    def _merge(self, requests: Sequence[CheckedRequest]) -> MergedBatch:
        """One batch of requests that are all tiled, or none of them."""
        return merge(requests, self._layout) if requests[0].tile is None else self._tiled.merge(requests)

    def _check_names(self, names: Collection[str] | None) -> Collection[str]:
        if names is None:
            return self.output_names
        for name in names:
            if name not in self.answer_names:
                raise RequestError(f"the model has no output {name!r}; it has {', '.join(self.answer_names)}")
        return names

    def _answer(
        self, view: View, requests: list[CheckedRequest], wanted: list[Collection[str]], *, again: bool = False
    ) -> list[dict[str, Tensor] | ServingError]:
        """Answers for checked requests: together, or one by one, should that fail (memory, say) or cost much padding: one cannot spoil the others.

        Those with ids that the model refuses get their errors, and the others are answered without them.
        """
        try:
            batch = self._merge(requests)
            rows = self._rows_of(view, batch, count=not again)
            refused = self._refused(rows, batch, requests, wanted)
            if refused:
                kept = [place for place in range(len(requests)) if place not in refused]
                others = iter(self._answer(view, [requests[place] for place in kept], [wanted[place] for place in kept], again=True) if kept else ())
                return [refused[place] if place in refused else next(others) for place in range(len(requests))]
            if batch.pads_too_much:
                return self._one_by_one(view, requests, wanted)
            names = [name for name in self.answer_names if any(name in asked for asked in wanted)]
            merged = self._compute(view, batch, rows, names)
        except PROGRAM_FAILURES:
            _LOG.exception("a batch of %d requests of model %s failed", len(requests), view.artifact.manifest.name)
            if len(requests) == 1:
                return [ServingError("the model failed on this request; the server's log tells more")]
            return self._one_by_one(view, requests, wanted)
        parts = {name: self._split(batch, name, answer) for name, answer in merged.items()}
        return [{name: parts[name][place] for name in parts if name in asked} for place, asked in enumerate(wanted)]

    def _one_by_one(self, view: View, requests: list[CheckedRequest], wanted: list[Collection[str]]) -> list[dict[str, Tensor] | ServingError]:
        """Answers for requests whose ids were counted before."""
        return [self._answer(view, [request], [names], again=True)[0] for request, names in zip(requests, wanted, strict=True)]

    def _split(self, batch: MergedBatch, name: str, answer: Tensor) -> tuple[Tensor, ...]:
        """An answer by request."""
        group = self._groups.get(name)
        if name == KNOWN:
            return batch.split_ids(answer)
        if group is not None and group.is_jagged:
            return batch.split_steps(answer, group.stream)
        if group is not None and group.is_padded:
            return batch.split_padded(answer, group.stream)
        return batch.split_rows(answer)

    def _rows_of(self, view: View, batch: MergedBatch, *, count: bool = True) -> Rows:
        """The rows that a batch reads; its ids are counted, unless they were before."""
        started = perf_counter()
        with torch.inference_mode():
            if batch.sides is None:
                rows: Rows = (self._find(view.sources.whole, batch),)
            else:
                rows = self._find(view.sources.user, batch.sides[0]), self._find(view.sources.item, batch.sides[1])
            if count:
                for found in rows:
                    self.counter.count(found)
                self.stages.remap.add(perf_counter() - started)
        return rows

    def _find(self, source: Source, batch: MergedBatch) -> BagRows:
        return source.find_rows(Bags.cut(batch.request, batch.layout.num_features, self._device))

    def _refused(
        self, rows: Rows, batch: MergedBatch, requests: Sequence[CheckedRequest], wanted: Sequence[Collection[str]]
    ) -> Mapping[int, RequestError]:
        """An error for each request with ids that the model refuses, by its place in the batch."""
        if batch.sides is None:
            return self._refuse(rows[0], batch, requests, wanted)
        return self._tiled.refused(rows, batch, requests, wanted)

    def _inputs(self, view: View, rows: Rows, batch: MergedBatch, *, tiled: bool = False) -> dict[str, Tensor]:
        """What programs take for a whole batch: those for tiled requests, or all others."""
        if batch.sides is None:
            return self._make_inputs(view.sources.whole.lookup, rows[0], batch.request)
        looked = self._tiled.look_up(view.sources, rows, batch)
        return self._tiled.tiled_inputs(looked) if tiled else self._tiled.inputs(looked)

    def _compute(self, view: View, batch: MergedBatch, rows: Rows, names: Sequence[str]) -> dict[str, Tensor]:
        """The named answers for a whole batch; only what they need is computed."""
        found: dict[str, Tensor] = {}
        with torch.inference_mode():
            if KNOWN in names:
                found[KNOWN] = rows[0].known() if len(rows) == 1 else torch.cat([part.known() for part in rows])
            if any(name != KNOWN for name in names):
                tiled = batch.sides is not None and view.programs.are_tiled
                started = perf_counter()
                inputs = self._inputs(view, rows, batch, tiled=tiled)
                looked_up = perf_counter()
                found |= view.programs.run(inputs, names, TILED_ROLES if tiled else ROLES)
                self.stages.lookup.add(looked_up - started)
                self.stages.program.add(perf_counter() - looked_up)
        return {name: found[name] for name in names}

    def _directly(self, view: View, requests: Sequence[PackedRequest], wanted: Sequence[Collection[str] | None]) -> list[dict[str, Tensor] | None]:
        """The answers of requests that need no second look; None for any other, and for all where a program fails."""
        if view.direct is not None:
            try:
                return view.direct(requests, wanted, self.counter, self.stages)
            except PROGRAM_FAILURES:
                pass
        return [None] * len(requests)
