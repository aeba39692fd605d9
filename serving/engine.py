"""The engine: one opened artifact, from requests to answers."""

import logging
import threading
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from emberline.delta_manifest import DeltaManifest
from emberline.encoding import columns_from_rows, encode
from emberline.errors import MissingDependencyError, ServingError
from emberline.manifest import MANIFEST_NAME
from emberline.memory import give_back_free_memory
from emberline.program_inputs import LOOKUP_PREFIX
from emberline.schema import ModelSchema
from emberline.serving.answering import Answerer, View
from emberline.serving.artifact import KNOWN, Artifact
from emberline.serving.deltas import delta_path
from emberline.serving.device_request import DeviceRequest
from emberline.serving.encoded import pack_encoded
from emberline.serving.fetch import Fetched, fetch
from emberline.serving.golden import REPLAYS, check_golden, tolerance_of
from emberline.serving.lookup import LookupBackend, choose_lookup
from emberline.serving.observe.stages import Stages
from emberline.serving.program_choice import Programs, load_programs
from emberline.serving.request import CheckedRequest, PackedRequest
from emberline.serving.table_memory import TableMemory
from emberline.serving.tables import PRIVATE
from emberline.serving.tiled_rows import Row, TiledRows, encode_tiled
from emberline.serving.unknown import IdCounts
from emberline.serving.views import CurrentView
from emberline.serving.warm_up import answer_sizes
from emberline.storage import is_url

__all__ = ["KNOWN", "LOOKUP_PREFIX", "Engine"]
_LOG = logging.getLogger(__name__)


class Engine:
    """Answers requests for one artifact. A request changes nothing: the same one gets the same answer, whatever came before, from any thread,
    until a delta is added.

    Make one with `Engine.open`.
    """

    def __init__(self, artifact: Artifact, lookup: LookupBackend, programs: Programs, device: torch.device) -> None:
        self.device = device
        self._views = CurrentView(View.of(artifact, lookup, programs))
        self._answerer = Answerer(artifact.schema, artifact.remaps, device)
        self._fetched: Fetched | None = None
        self._warm_up: tuple[int, ...] = ()
        self._lookup_name: str | None = None
        self._adding = threading.Lock()

    @classmethod
    def open(
        cls,
        path: Path | str,
        *,
        device: str = "cpu",
        num_threads: int | None = None,
        verify: bool = True,
        deltas: int | None = None,
        format: str | None = None,
        tables: str = PRIVATE,
        row_growth: float | None = None,
        lookup: str | None = None,
        warm_up: Sequence[int] = (),
        cache: Path | None = None,
    ) -> Self:
        """Open an artifact with its deltas, and make sure that it answers here as it did when it, or the last of them, was exported.

        Args:
            path: an artifact's folder, or a model's, of which the version that is served is taken; or the URL of one, which is copied to `cache`.
            device: where tables and programs go, as torch names it.
            num_threads: threads of torch's operators, in the whole process; None leaves torch's own choice.
            verify: compare every file's sha256 with the manifest's; else names and sizes only.
            deltas: how many deltas to add, from the first on; None for all that are there.
            format: of the programs to run: `torchscript`, `aoti` or `onnx`; None takes the first of them that is there and can run here.
            tables: where they are: `private`, in memory of this process, on huge pages where the system has some; `mapped`, in the pages of their
                files, which all processes share; `disk`: each request reads the rows that it needs, which is slow and needs little memory.
            row_growth: by what share private tables on a CPU may be larger than their files, so that rows straddle fewer lines of the cache; 0: not
                at all; None: 0.125.
            lookup: what looks rows up: `native`, a kernel in C for CPUs, `torch`, `fbgemm`, where that is installed, with a copy of the tables, or
                `fused`, a kernel for CUDA, where the package triton is installed;
                None takes the first of `native` and `torch` that works here.
            warm_up: rows of requests that are answered before it is ready, so that none that is waited for is the first of its size.
            cache: where what comes from a URL is kept; None for `~/.cache/emberline/artifacts`.

        Raises:
            ArtifactError: it is missing, damaged, does not load here, or gives other answers than its golden sample; the message names
                the file or the output that differs.
            ConfigError: tables cannot be there, `row_growth` is below 0 or for such as cannot grow, or there is no such `lookup`.
            MissingDependencyError: torch does not see such a device, a package that runs the programs is not installed, or `lookup` does not work.
        """
        if num_threads is not None:
            torch.set_num_threads(num_threads)
        place = _usable_device(device)
        fetched = fetch(path, cache) if is_url(path) else None
        root, most = (Path(path), deltas) if fetched is None else (fetched.root, fetched.most_deltas(deltas))
        artifact = Artifact.open(root, device=place, verify=verify, deltas=most, tables=tables, row_growth=row_growth)
        engine = cls._checked(artifact, load_programs(artifact, place, format), place, warm_up, lookup)
        engine._fetched, engine._warm_up, engine._lookup_name = fetched, tuple(warm_up), lookup
        engine.forget_counts()
        give_back_free_memory()
        found = engine.opened_memory, engine.lookup_backend, torch.get_num_threads()
        _LOG.info("model %s, version %d: %s; lookups by %s; %d threads", engine.name, engine.version, *found)
        return engine

    @classmethod
    def _checked(
        cls, artifact: Artifact, programs: Programs, device: torch.device, warm_up: Sequence[int], lookup: str | None, replays: int = REPLAYS
    ) -> Self:
        engine = cls._over(artifact, programs, device, lookup)
        check_golden(engine, replays=replays)
        answer_sizes(engine, warm_up)
        return engine

    @classmethod
    def _over(cls, artifact: Artifact, programs: Programs, device: torch.device, lookup: str | None) -> Self:
        return cls(artifact, choose_lookup(artifact.schema, artifact.rows, artifact.table_types, device, lookup), programs, device)

    def apply_delta(self, path: Path | str, *, verify: bool = True) -> int:
        """Add the next delta while requests are answered: each sees all of it or nothing.

        What changed is made beside what is in use, answers the delta's own golden sample, and takes its place at once. Requests that have begun end
        with what they began with; after the last of them, rows go into the tables that are in memory of this process alone, and this returns.
        Where anything is wrong, the engine stays as it was.

        Args:
            path: the delta's folder.
            verify: compare every file's digest with the manifest's; else names and sizes only.

        Returns:
            Its number.

        Raises:
            ArtifactError: it is damaged, was made for another artifact, is not the next one, or gives other answers than its golden sample.
        """
        with self._adding:
            before = self._views.view
            artifact = before.artifact.with_delta(Path(path), verify=verify)
            manifest = artifact.deltas[-1].manifest
            changed = {entry.role for entry in manifest.programs}
            programs = before.programs.after(artifact, self.device, changed)
            sizes, replays = (self._warm_up, REPLAYS) if changed else ((), 1)
            self._views.replace(type(self)._checked(artifact, programs, self.device, sizes, self._lookup_name, replays)._views.view)
            if artifact.memory == PRIVATE and artifact.overlaid:  # nobody reads the rows of before any more
                self._views.replace(type(self)._over(artifact.settled(), programs, self.device, self._lookup_name)._views.view)
        _LOG.info("model %s, version %d: added delta %d", self.name, self.version, manifest.number)
        return manifest.number

    def apply_new_deltas(self) -> list[int]:
        """Add the deltas that lie in the artifact's folder or behind its URL and have not been added yet, in order, up to the first gap.

        Returns:
            Their numbers.

        Raises:
            ArtifactError: as `apply_delta`; those before it were added.
        """
        added = []
        if self._fetched is not None:
            self._fetched.newer_deltas(self.delta)
        while (path := delta_path(self.artifact.root, self.delta + 1) / MANIFEST_NAME).is_file():
            added.append(self.apply_delta(path.parent))
        return added

    @property
    def artifact(self) -> Artifact:
        """What is open, with the deltas that were added."""
        return self._views.view.artifact

    @property
    def delta(self) -> int:
        """The number of the last delta that was added; 0 for none."""
        return len(self._views.view.artifact.deltas)

    @property
    def delta_manifest(self) -> DeltaManifest | None:
        """What the last delta that was added says of itself."""
        deltas = self._views.view.artifact.deltas
        return deltas[-1].manifest if deltas else None

    @property
    def schema(self) -> ModelSchema:
        """The model's description."""
        return self.artifact.schema

    @property
    def name(self) -> str:
        """The model's name."""
        return self.artifact.manifest.name

    @property
    def version(self) -> int:
        """The artifact's version."""
        return self.artifact.manifest.version

    @property
    def format(self) -> str:
        """The format of the programs that it runs."""
        return self._views.view.programs.format

    @property
    def lookup_backend(self) -> str:
        """The name of what looks rows up."""
        return self._views.view.sources.whole.lookup.name

    def bound(self, role: str) -> float:
        """How far answers of its `outputs` or `groups` program may be from the trained model's, absolute below 1 and relative above."""
        return self._views.view.programs.bounds.get(role, tolerance_of(self.schema.group_dtype))

    @property
    def answer_names(self) -> tuple[str, ...]:
        """Every answer that may be asked for: the model's outputs, `lookup.<group>` for each group, and `known` where there are ids."""
        return self._answerer.answer_names

    def id_counts(self) -> dict[str, IdCounts]:
        """Ids asked for since the artifact was opened, and those of them without a row of their own, by ZCH or dynamic table."""
        return self._answerer.counter.read()

    def forget_counts(self) -> None:
        """Count ids from 0 again."""
        self._answerer.counter.clear()

    def watch_stages(self, stages: Stages) -> None:
        """Have the seconds of batches' stages added there from now on."""
        self._answerer.stages = stages

    @cached_property
    def opened_memory(self) -> TableMemory:
        """`table_memory` as it was when the artifact was opened: to ask again has the system go through this process's pages again."""
        return self.table_memory()

    def table_memory(self) -> TableMemory:
        """Where the tables are, and how much of them lies on huge pages."""
        return TableMemory.of(self.artifact)

    def check(self, request: PackedRequest) -> CheckedRequest:
        """The request, checked: `predict` and `predict_many` do it too, and not twice.

        Raises:
            RequestError: it is malformed; the message names the tensor or feature.
        """
        return self._answerer.check(request)

    def encode_rows(self, rows: Sequence[Mapping[str, object]]) -> CheckedRequest:
        """A request from raw rows, `{column: value}` each, encoded exactly as in training.

        Raises:
            RequestError: a value cannot be encoded; the message names the feature.
        """
        columns, num_rows = columns_from_rows(self.schema.features, rows)
        encoded = encode(self.schema.features, columns, num_rows)
        return self.check(pack_encoded(self.schema, encoded))

    def encode_tiled(self, users: Sequence[Row], rows: Sequence[Sequence[Row]]) -> CheckedRequest:
        """A tiled request from raw users and, for each of them, raw rows: what the same rows would be, each with its user's columns too.

        Args:
            users: `{column: value}` each: the columns of the users' features, and any other that holds for all rows of a user.
            rows: for each user, `{column: value}` each.

        Raises:
            RequestError: the model takes no tiled requests, a column is given on the wrong side or on both, or a value cannot be encoded; the message
                names the column or feature.
        """
        return self.check(encode_tiled(self.schema, TiledRows(users, rows)))

    def predict(self, request: PackedRequest) -> dict[str, Tensor]:
        """The model's outputs by name: float32 [B], or [B, width].

        Raises:
            RequestError: the request is malformed.
        """
        return self._views.call(self._answerer.one, request, self._answerer.output_names)

    def lookup(self, request: PackedRequest) -> dict[str, Tensor]:
        """The group tensors by name: float32 [B, dim]; of sequence groups as `GroupSpec` says.

        Raises:
            RequestError: the request is malformed.
        """
        found = self._views.call(self._answerer.one, request, self._answerer.lookup_names)
        return {name.removeprefix(LOOKUP_PREFIX): answer for name, answer in found.items()}

    def known(self, request: PackedRequest) -> Tensor:
        """Whether each id has a row of its own: bool [N]. False where a ZCH or dynamic table answers as its feature's `unknown_ids` says.

        Raises:
            RequestError: the request is malformed.
        """
        return self._views.call(self._answerer.one, request, [KNOWN])[KNOWN]

    def full_inputs(self, request: PackedRequest) -> dict[str, Tensor]:
        """What the artifact's `full` programs take for a request, by name: with the rows that its ids read, which need maps that no program holds.

        Raises:
            RequestError: the request is malformed, or has ids that the model refuses.
        """
        return self._views.call(self._answerer.full_inputs, request)

    def predict_many(
        self, requests: Sequence[PackedRequest | DeviceRequest], answers: Sequence[Collection[str] | None] | None = None
    ) -> list[dict[str, Tensor] | ServingError]:
        """Answer many requests as one batch; a malformed one gets its error, and the others their answers, in the same order.

        Lookups are bit-equal to asking one by one, and the steps of a sequence are filled up to the request's own longest row. A dense program's
        matrix products may round differently in a batch of another size, so outputs, and groups that are encoded, are equal to about 1e-6.

        Args:
            requests: any number, of any sizes; those that are on the engine's device already are checked and merged there.
            answers: for each request, the names wanted, of `answer_names`; None for the model's outputs. Nothing else is computed.
        """
        return self._views.call(self._answerer.many, requests, answers)

    def program_inputs(self, request: PackedRequest) -> dict[str, Tensor]:
        """What the model's programs take for a request, by the names of `program_inputs`: for a program that runs elsewhere.

        Raises:
            RequestError: the request is malformed.
        """
        return self._views.call(self._answerer.program_inputs, request)


def _usable_device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise MissingDependencyError(f"{name!r} is no device that torch knows: cpu, cuda or cuda:<number>") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise MissingDependencyError(f"device {name!r} is not there: torch {torch.__version__} sees {torch.cuda.device_count()} CUDA devices")
    return device
