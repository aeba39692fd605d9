"""From requests to answers, for one model: many become one batch, which is answered at once and split again."""

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from emberline.errors import RequestError, ServingError
from emberline.program_inputs import LOOKUP_PREFIX
from emberline.schema import ModelSchema
from emberline.serving.artifact import KNOWN, Artifact
from emberline.serving.batching import BatchLayout, MergedBatch, merge
from emberline.serving.full_inputs import FullInputMaker
from emberline.serving.inputs import InputMaker
from emberline.serving.lookup import BagRows, Bags, LookupBackend, RowFinder
from emberline.serving.program import PROGRAM_FAILURES
from emberline.serving.program_choice import ROLES, Programs
from emberline.serving.request import CheckedRequest, PackedRequest, RequestValidator
from emberline.serving.unknown import UnknownCounter, UnknownRefuser

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class View:
    """All that a delta can change: a request reads one from its beginning to its end."""

    artifact: Artifact
    find_rows: RowFinder
    lookup: LookupBackend
    programs: Programs


class Answerer:
    """Answers requests from whichever view it is given: what it holds of a model no delta changes, but for the counts of ids.

    Args:
        schema: the model's description.
        counted: names of the tables whose ids are counted.
        device: where tables and programs are.

    Attributes:
        counter: ids asked for.
        output_names: the model's outputs.
        lookup_names: `lookup.<group>` for each group.
        answer_names: all of these, and `known` where there are ids.
    """

    def __init__(self, schema: ModelSchema, counted: Collection[str], device: torch.device) -> None:
        self.counter = UnknownCounter(counted)
        self._schema, self._device = schema, device
        self._refuse = UnknownRefuser(schema)
        self._validator = RequestValidator(schema)
        self._layout = BatchLayout.of(schema)
        self._make_inputs = InputMaker(schema)
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
        return self._compute(view, *self._one_batch(view, request, names), names)

    def many(
        self, view: View, requests: Sequence[PackedRequest], answers: Sequence[Collection[str] | None] | None
    ) -> list[dict[str, Tensor] | ServingError]:
        """Answers or an error for each request; see `Engine.predict_many`."""
        wanted = list(answers) if answers is not None else [None] * len(requests)
        results: list[dict[str, Tensor] | ServingError] = []
        good: list[tuple[int, CheckedRequest, Collection[str]]] = []
        for place, (request, names) in enumerate(zip(requests, wanted, strict=True)):
            try:
                good.append((place, self.check(request), self._check_names(names)))
                results.append({})
            except ServingError as error:
                results.append(error)
        if good:
            found = self._answer(view, [request for _, request, _ in good], [names for _, _, names in good])
            for (place, _, _), answer in zip(good, found, strict=True):
                results[place] = answer
        return results

    def program_inputs(self, view: View, request: PackedRequest) -> dict[str, Tensor]:
        """What programs take for a request; see `Engine.program_inputs`."""
        batch, rows = self._one_batch(view, request, self.output_names)
        with torch.inference_mode():
            return self._make_inputs(view.lookup, rows, batch.request)

    def full_inputs(self, view: View, request: PackedRequest) -> dict[str, Tensor]:
        """What `full` programs take for a request; see `Engine.full_inputs`."""
        batch, rows = self._one_batch(view, request, self.output_names, count=False)
        return FullInputMaker(self._schema)(rows, batch.request)

    def _one_batch(self, view: View, request: PackedRequest, names: Sequence[str], *, count: bool = True) -> tuple[MergedBatch, BagRows]:
        checked = self.check(request)
        batch = merge([checked], self._layout)
        rows = self._rows_of(view, batch, count=count)
        for error in self._refuse(rows, batch, [checked], [names]).values():
            raise error
        return batch, rows

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
            batch = merge(requests, self._layout)
            rows = self._rows_of(view, batch, count=not again)
            refused = self._refuse(rows, batch, requests, wanted)
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

    def _rows_of(self, view: View, batch: MergedBatch, *, count: bool = True) -> BagRows:
        """The rows that a batch reads; its ids are counted, unless they were before."""
        with torch.inference_mode():
            rows = view.find_rows(Bags.cut(batch.request, self._layout.num_features, self._device))
            if count:
                self.counter.count(rows)
        return rows

    def _compute(self, view: View, batch: MergedBatch, rows: BagRows, names: Sequence[str]) -> dict[str, Tensor]:
        """The named answers for a whole batch; only what they need is computed."""
        found: dict[str, Tensor] = {}
        with torch.inference_mode():
            if KNOWN in names:
                found[KNOWN] = rows.known()
            if any(name != KNOWN for name in names):
                inputs = self._make_inputs(view.lookup, rows, batch.request)
                for role in ROLES:
                    program = view.programs.by_role.get(role)
                    if program is not None and any(name in program.names for name in names):
                        found.update(program(inputs))
        return {name: found[name] for name in names}
