"""Answers to requests whose arrays are on the engine's device: checked, merged, looked up and computed there."""

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from emberline.program_inputs import program_outputs
from emberline.schema import ModelSchema, UnknownIds
from emberline.serving.consistency import KNOWN
from emberline.serving.device_request import DeviceBatch, DeviceMerger, DeviceRequest
from emberline.serving.lookup import Bags
from emberline.serving.program_choice import ROLES, Programs
from emberline.serving.sources import Source
from emberline.serving.unknown import UnknownCounter

Answers = dict[str, Tensor]


class DeviceAnswers:
    """Answers requests for one model that need no second look; any number of threads may use it.

    Args:
        schema: the model's description.
        device: where tables and programs are.
    """

    def __init__(self, schema: ModelSchema, device: torch.device) -> None:
        self._merge = DeviceMerger(schema, device)
        self._outputs = program_outputs(schema, "outputs")
        self._names = (*self._outputs, *program_outputs(schema, "groups"), KNOWN)
        self._refused = {place for place, feature in enumerate(schema.sparse_features) if feature.unknown_ids is UnknownIds.ERROR}

    def __call__(
        self,
        source: Source,
        programs: Programs,
        requests: Sequence[DeviceRequest],
        wanted: Sequence[Collection[str] | None],
        counter: UnknownCounter,
    ) -> list[Answers | None]:
        """The answers of each request; None for one that must go the long way.

        Args:
            source: of all features.
            programs: the model's.
            requests: any number.
            wanted: the names of the answers that each wants; None for the model's outputs.
            counter: counts the ids of those that are answered.
        """
        names = [self._outputs if given is None else given for given in wanted]
        good = [place for place, request in enumerate(requests) if set(names[place]) <= set(self._names) and self._merge.is_ordinary(request)]
        with torch.inference_mode():
            batch, wrong = self._merge([requests[place] for place in good]) if good else (None, [])
            while any(wrong):
                good = [place for place, is_wrong in zip(good, wrong, strict=True) if not is_wrong]
                batch, wrong = self._merge([requests[place] for place in good]) if good else (None, [])
            answers = None if batch is None else self._answer(source, programs, batch, [names[place] for place in good], counter)
        found = {} if answers is None else dict(zip(good, answers, strict=True))
        return [found.get(place) for place in range(len(requests))]

    def _answer(
        self, source: Source, programs: Programs, batch: DeviceBatch, names: Sequence[Collection[str]], counter: UnknownCounter
    ) -> list[Answers] | None:
        """The answers of a batch, by request; None where some id is refused."""
        rows = source.find_rows(Bags.of(batch.bags, batch.sizes))
        if self._refused and rows.unknown_in(self._refused) is not None:
            return None
        asked = {name for some in names for name in some}
        parts = dict[str, tuple[Tensor, ...]]()
        if KNOWN in asked:
            parts[KNOWN] = batch.split_ids(rows.known())
        if asked - {KNOWN}:
            answers = programs.run({"pooled": source.lookup.pooled(rows), "dense": batch.dense}, asked, ROLES)
            parts |= {name: torch.split(answers[name], batch.num_rows) for name in asked - {KNOWN}}
        counter.count(rows)
        return [{name: parts[name][place] for name in self._names if name in some} for place, some in enumerate(names)]
