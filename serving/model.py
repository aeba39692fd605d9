"""One model being served: its engine, its queue, and what it has done so far."""

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from emberline.errors import DeadlineError, OverloadedError, RequestError, ServingError
from emberline.serving.canary.mirror import Mirror
from emberline.serving.deltas.watcher import DeltaWatcher
from emberline.serving.engine import Engine
from emberline.serving.limits import LimitChecker
from emberline.serving.live.identity import Identity
from emberline.serving.metrics import Metrics
from emberline.serving.observe.context import note_rows
from emberline.serving.pace import Pace
from emberline.serving.protocol.messages import InferRequest, InferResponse
from emberline.serving.protocol.packing import Packer, answer_tensors, empty_row
from emberline.serving.protocol.strict_json import quote
from emberline.serving.protocol.tensors import Tensor
from emberline.serving.protocol.wire import wire_outputs
from emberline.serving.request import CheckedRequest, PackedRequest
from emberline.serving.scheduler import BatchReport, BatchScheduler
from emberline.serving.settings import ServerSettings
from emberline.serving.statistics import Statistics
from emberline.serving.tiled_rows import TiledRows

_PROBE_S = 0.05
"""How long a look whether a model is alive waits for its answer: those who ask about health wait for no batch."""
Answers = dict[str, torch.Tensor]
Row = Mapping[str, object]


@dataclass(eq=False, slots=True)
class Ask:
    """What one caller wants: packed inputs, or plain rows that the model's thread encodes, and the names of the answers."""

    request: PackedRequest | Sequence[Row] | TiledRows
    names: tuple[str, ...]


class LoadedModel:
    """One version of one model, ready to answer.

    Args:
        engine: the opened artifact.
        settings: limits.
        metrics: where batches are counted.
    """

    def __init__(self, engine: Engine, settings: ServerSettings, metrics: Metrics) -> None:
        self.engine = engine
        self.name = engine.name
        self.version = engine.version
        self.identity = Identity(engine.version, engine.artifact.digest)
        self.schema = engine.schema
        self.statistics = Statistics()
        self._counting = threading.Lock()
        """Batches are counted by the model's thread, and by the event loop for those that it answers."""
        self._metrics, self._tallies = metrics, metrics.batch_tallies(engine.name)
        self._limits = LimitChecker(self.schema, settings.request_limits)
        self._hung_s = settings.timeout_s
        self._packer = Packer(self.schema)
        self._outputs = tuple(tensor.name for tensor in wire_outputs(self.schema))
        self._scheduler: BatchScheduler[Ask, Answers] = BatchScheduler(self.name, self._answer, settings.queue_limits, report=self._count_batch)
        self.pace = Pace.measure(engine)
        self._stages = metrics.stages(engine.name, noted=settings.observe.otel_endpoint is not None)
        engine.watch_stages(self._stages)
        self._watcher = DeltaWatcher(engine, settings.delta_poll_s)
        self.mirror: Mirror | None = None
        """Takes a share of what was answered, while another version is tried."""

    def show(self) -> None:
        """Let metrics show it, in the place of any other version."""
        self.engine.watch_stages(self._stages)
        self._metrics.add_model(self.engine, lambda: self._scheduler.num_waiting)

    async def is_alive(self) -> bool:
        """Whether the model answers: a small request does at once, or a batch is being computed that has not taken longer than any request may."""
        try:
            await self._scheduler.ask(Ask(empty_row(self.schema), self._outputs), 1, _PROBE_S, counted=False)
        except (DeadlineError, OverloadedError):
            return self._scheduler.is_alive and self._scheduler.busy_s < self._hung_s
        except ServingError:
            return False
        return True

    async def infer(self, request: InferRequest, timeout_s: float, num_bytes: int) -> InferResponse:
        """Answer one v2 request of so many bytes; outputs that it names, or all.

        Raises:
            ServingError: it was refused, or the time was up.
        """
        names = self.names_of(request.outputs)
        packed, num_rows = self.pack(request.inputs)
        if self.pace.is_quick(sum([tensor.values.nbytes for tensor in request.inputs])):
            note_rows(num_rows)
            answers = self._answer_here(packed, num_rows, names)
        else:
            answers = await self._ask(Ask(packed, names), num_rows, timeout_s, num_bytes)
        return InferResponse(model=self.name, version=str(self.version), id=request.id, outputs=answer_tensors(answers, names))

    def pack(self, inputs: tuple[Tensor, ...]) -> tuple[PackedRequest, int]:
        """A request's tensors in packed form, and its rows.

        Raises:
            ServingError: names or types are wrong, or there is too much of something.
        """
        packed = self._packer.pack(inputs)
        num_rows = self._packer.num_rows(packed)
        self._limits.check(packed, num_rows)
        return packed, num_rows

    def answer_quick(self, request: PackedRequest, num_rows: int, names: tuple[str, ...]) -> Answers:
        """Answer a small request in the event loop: only for what `pace` calls quick.

        Raises:
            ServingError: it was refused.
        """
        self._limits.check(request, num_rows)
        return self._answer_here(request, num_rows, names)

    def _answer_here(self, request: PackedRequest, num_rows: int, names: tuple[str, ...]) -> Answers:
        ask = Ask(request, names)
        answers, took = self._scheduler.answer_here(ask, num_rows)
        self.pace.saw(took)
        if self.mirror is not None:
            self.mirror.offer(ask, answers, num_rows)
        return answers

    async def _ask(self, ask: Ask, num_rows: int, timeout_s: float, num_bytes: int) -> Answers:
        answers = await self._scheduler.ask(ask, num_rows, timeout_s, num_bytes=num_bytes)
        if self.mirror is not None:
            self.mirror.offer(ask, answers, num_rows)
        return answers

    async def answer_rows(self, rows: Sequence[Row] | TiledRows, names: tuple[str, ...], timeout_s: float, num_bytes: int) -> Answers:
        """The named answers for plain rows of so many bytes: encoded as in training, missing columns at their defaults, unknown ones refused.

        Raises:
            ServingError: it was refused, or the time was up.
        """
        self._limits.check_rows(len(rows))
        return await self._ask(Ask(rows, self._check_outputs(names)), len(rows), timeout_s, num_bytes)

    def statistics_entry(self) -> dict[str, Any]:
        """One entry of `model_stats` with `table_ids`, ids asked for and unknown ones by table, and `delta`, the last that was added.

        gRPC's message has no place for either.
        """
        counts = [{"table": table, **asdict(found)} for table, found in self.engine.id_counts().items()]
        return {**self.statistics.to_dict(self.name, self.version), "delta": self.engine.delta, "table_ids": counts}

    def close(self) -> None:
        """Answer what waits and stop."""
        if self.mirror is not None:
            self.mirror.close()
        self._watcher.close()
        self._scheduler.close()

    def names_of(self, outputs: tuple[str, ...] | None) -> tuple[str, ...]:
        """The outputs that a request names, or all.

        Raises:
            RequestError: the model has no such output.
        """
        return self._outputs if outputs is None else self._check_outputs(outputs)

    def _check_outputs(self, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name not in self._outputs:
                raise RequestError(f"the model has no output {quote(name)}; it has {', '.join(self._outputs)}")
        return names

    def _answer(self, asks: list[Ask]) -> list[Answers | ServingError]:
        """Encode what is rows, and answer all as one batch."""
        if len(asks) == 1 and isinstance(asks[0].request, PackedRequest):
            return self.engine.predict_many([asks[0].request], [asks[0].names])
        results: list[Answers | ServingError | None] = []
        ready: list[tuple[PackedRequest, tuple[str, ...]]] = []
        started = time.perf_counter()
        for ask in asks:
            try:
                packed = ask.request if isinstance(ask.request, PackedRequest) else self._encode(ask.request)
                ready.append((packed, ask.names))
                results.append(None)
            except ServingError as error:
                results.append(error)
        if not all(isinstance(ask.request, PackedRequest) for ask in asks):
            self._stages.encode.add(time.perf_counter() - started)
        found = iter(self.engine.predict_many([packed for packed, _ in ready], [names for _, names in ready]))
        return [next(found) if result is None else result for result in results]

    def _encode(self, rows: Sequence[Row] | TiledRows) -> CheckedRequest:
        encoded = self.engine.encode_tiled(rows.users, rows.rows) if isinstance(rows, TiledRows) else self.engine.encode_rows(rows)
        self._limits.check(encoded, encoded.num_rows)
        return encoded

    def _count_batch(self, report: BatchReport) -> None:
        statistics = self.statistics
        with self._counting:
            statistics.execution_count += 1
            statistics.queue_count += report.num_requests
            statistics.queue_ns += int(report.waited_s * 1e9)
            statistics.compute_ns += int(report.took_s * 1e9)
            statistics.last_inference_ms = time.time_ns() // 1_000_000
        self._tallies.add(report)
        if report.was_queued:
            self._stages.queue.add(report.waited_s / report.num_requests)
