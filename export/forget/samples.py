"""Golden samples that hold an id that goes: the same requests with another id in its place, and the answers that the engine gives to these.

All other ids read what they read before, so the version as it still is answers such a request as it will: its engine is asked, which has just given
the old sample's answers. What is written is replayed by the changed version before that takes its place.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, reduce

import numpy as np
import numpy.typing as npt
import torch

from emberline.export.forget.ledger import Ledger
from emberline.export.golden import Sample
from emberline.program_inputs import TILED
from emberline.schema import FeatureSpec, TableKind, UnknownIds
from emberline.serving.artifact import Artifact
from emberline.serving.encoded import split_ids
from emberline.serving.engine import Engine
from emberline.serving.request import PackedRequest
from emberline.serving.stored_files import Tensors
from emberline.serving.tables import MAPPED

Ids = npt.NDArray[np.int64]
_PARTS = tuple(field.name for field in fields(PackedRequest))


@dataclass(frozen=True)
class NewSamples:
    """What a state's golden sample is to be.

    Args:
        sample: of an untiled request.
        tiled: of a tiled one, where there was one.
    """

    sample: Sample
    tiled: Sample | None


def find_new_samples(states: Sequence[Artifact], ledger: Ledger) -> dict[int, NewSamples]:
    """The samples of the states whose own one holds an id that is on a list, by state.

    Args:
        states: a version, and the same with one delta more each.
        ledger: the list.

    Raises:
        ArtifactError: the version's programs cannot run here, or it does not answer as it did when it was exported.
    """
    found = {}
    for number, state in enumerate(states):
        samples = _Samples(state, ledger)
        if samples.held:
            found[number] = samples.anew(number)
    return found


class _Samples:
    """The samples of one state.

    Args:
        state: it.
        ledger: whose ids go.
    """

    def __init__(self, state: Artifact, ledger: Ledger) -> None:
        self._state, self._ledger = state, ledger
        tensors = state.golden()
        untiled = {name: tensor for name, tensor in tensors.items() if not name.startswith(TILED)}
        tiled = {name.removeprefix(TILED): tensor for name, tensor in tensors.items() if name.startswith(TILED)}
        self._requests = [_request(part) for part in (untiled, tiled) if part]
        self._tables = {table.name: table for table in state.schema.tables}

    @cached_property
    def held(self) -> dict[str, Ids]:
        """The ids in it that go, by feature."""
        parts = [split_ids(self._state.schema, request, _ids(request)) for request in self._requests]
        both = {name: np.unique(np.concatenate([part[name] for part in parts])) for name in parts[0]}
        gone = {name: ids[self._gone(name, ids)] for name, ids in both.items()}
        return {name: ids for name, ids in gone.items() if ids.size}

    def anew(self, deltas: int) -> NewSamples:
        """The samples without them, with the engine's answers."""
        others = {feature.name: self._other(feature) for feature in self._state.schema.sparse_features if feature.name in self.held}
        engine = Engine.open(self._state.root, verify=False, deltas=deltas, tables=MAPPED)
        if None in others.values():
            return NewSamples(_answered(engine, engine.encode_rows([])), None)
        instead = {name: other for name, other in others.items() if other is not None}
        sample, *tiled = [_answered(engine, self._exchanged(request, instead)) for request in self._requests]
        return NewSamples(sample, tiled[0] if tiled else None)

    def _exchanged(self, request: PackedRequest, others: Mapping[str, int]) -> PackedRequest:
        ids = _ids(request).copy()
        for name, own in split_ids(self._state.schema, request, ids).items():
            if name in others:
                own[np.isin(own, self.held[name])] = others[name]  # the part is a view
        given = {part: getattr(request, part) for part in _PARTS}
        return PackedRequest(**{**given, "ids": ids})

    def _gone(self, feature: str, ids: Ids) -> npt.NDArray[np.bool_]:
        found = np.zeros(ids.size, np.bool_)
        for table in self._tables_of(feature):
            found |= self._ledger.find_gone(self._state.schema, self._tables[table], torch.from_numpy(ids)).numpy()
        return found

    def _other(self, feature: FeatureSpec) -> int | None:
        """An id to put in its place: one that owns a row in each table that the feature reads, else one that no table knows; None: there is none."""
        tables = self._tables_of(feature.name)
        raw = [table for table in tables if self._tables[table].kind is not TableKind.STATIC]
        if not raw:
            rows = np.arange(min(self._tables[table].rows for table in tables))
            return _first(rows[~self._gone(feature.name, rows)])
        known = reduce(np.intersect1d, [self._state.ids[table].raw_ids.numpy() for table in raw])
        free = _first(known[~self._gone(feature.name, known)])
        if free is not None or feature.unknown_ids is UnknownIds.ERROR:
            return free
        some = np.arange(known.size + self.held[feature.name].size + 1)
        return _first(some[~self._gone(feature.name, some) & ~np.isin(some, known)])

    def _tables_of(self, feature: str) -> list[str]:
        return list(dict.fromkeys(read.table for read in self._state.schema.reads if read.feature == feature))


def _request(tensors: Tensors) -> PackedRequest:
    return PackedRequest(**{name: tensors[name].numpy() for name in _PARTS if name in tensors})


def _ids(request: PackedRequest) -> Ids:
    assert request.ids is not None
    return request.ids.reshape(-1)


def _first(ids: Ids) -> int | None:
    return int(ids[0]) if ids.size else None


def _answered(engine: Engine, request: PackedRequest) -> Sample:
    checked = engine.check(request)
    return Sample(request, engine.predict(checked), engine.lookup(checked))
