"""How batches are trained, one after the other: the plain loop, and TorchRec's pipeline, which prepares batches while others are trained.

    plain       batch 1: copy, exchange ids, forward, backward, step │ batch 2: copy, exchange ids, forward, ...
    pipelined   batch 1: forward, backward, step
                batch 2: exchange ids of its tables
                batch 3: read, check, copy

Both take the same steps in the same order, with the same numbers to the last bit. Reading ahead is no training: what a batch changes (weights, id
maps, random numbers, the place in the data) changes when its turn comes.
"""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Protocol, Self

import torch
from torch import Tensor, nn
from torchrec.distributed.train_pipeline import TrainPipelineSparseDist
from torchrec.distributed.types import NoWait
from torchrec.streamable import Pipelineable

from emberline.train.data import Batch
from emberline.train.job_build import Parts
from emberline.train.models.tasks import total_loss
from emberline.train.optim import TrainingStep
from emberline.train.sharding import Ranks
from emberline.train.sharding.prefetching import Prefetcher, prefetch_sent


@dataclass(frozen=True)
class Work(Pipelineable):  # type: ignore[misc]
    """A batch to train.

    Args:
        batch: this rank's rows.
        rows: the rows of all ranks.
        totals: for each task, what its loss is divided by over all ranks; None: over this batch.
    """

    batch: Batch
    rows: int
    totals: Sequence[float] | None = None

    def to(self, device: torch.device, non_blocking: bool = False) -> Self:
        """The same work on another device."""
        return replace(self, batch=self.batch.to(device, non_blocking=non_blocking))

    def record_stream(self, stream: torch.Stream) -> None:
        """See `Batch.record_stream`."""
        self.batch.record_stream(stream)


class Trained(NamedTuple):
    """What became of a batch.

    Args:
        loss: this rank's part of it; the parts add up over the ranks.
        rows: the rows of all ranks.
    """

    loss: Tensor
    rows: int


class Loop(Protocol):
    """Trains batches, each when the result of the one before is taken."""

    reads_ahead: bool
    """Whether more batches are taken than were trained."""

    def steps(self, works: Iterator[Work], epochs: int) -> Generator[Trained, None, None]:
        """Train all batches, in order.

        Args:
            works: all ranks have as many.
            epochs: passes over the data done before.
        """

    def leave(self) -> None:
        """Say, before `steps` is left early, that no more batches will be trained. All ranks do it together."""


class PlainLoop:
    """Reads a batch when the one before is trained; or just before it is, where tables keep rows in a second tier, which is told of them then.

    Args:
        parts: of the run.
        ranks: all of them.
    """

    def __init__(self, parts: Parts, ranks: Ranks) -> None:
        self._parts, self._ranks = parts, ranks
        self._prefetcher = Prefetcher(parts.model.embedding_group.collections)
        self.reads_ahead = bool(self._prefetcher)

    def steps(self, works: Iterator[Work], epochs: int) -> Generator[Trained, None, None]:
        """See `Loop`."""
        for work in self._prefetched(works) if self._prefetcher else works:
            placed = replace(work, batch=self._parts.model.embedding_group.on_device(work.batch, self._ranks.device))
            loss = self._parts.step.run(partial(_loss, self._parts, placed, self._ranks.world_size), epochs)
            yield Trained(loss / self._ranks.world_size, work.rows)

    def leave(self) -> None:
        """See `Loop`."""

    def _prefetched(self, works: Iterator[Work]) -> Iterator[Work]:
        """Each batch, checked, when the tables were told of the one behind it."""
        group = self._parts.model.embedding_group
        present: Work | None = None
        for work in works:
            following = replace(work, batch=group.check(work.batch))
            self._prefetcher.prefetch(following.batch)
            if present is not None:
                yield present
            present = following
        if present is not None:
            yield present


class PipelinedLoop:
    """TorchRec's pipeline: on a GPU, copies and the exchange of ids have streams of their own, beside the one that computes.

    Args:
        parts: of the run.
        ranks: all of them.
    """

    reads_ahead = True

    def __init__(self, parts: Parts, ranks: Ranks) -> None:
        self._parts, self._ranks = parts, ranks
        self._pipeline: TrainPipelineSparseDist | None = None

    def steps(self, works: Iterator[Work], epochs: int) -> Generator[Trained, None, None]:
        """See `Loop`."""
        group = self._parts.model.embedding_group
        checked = (replace(work, batch=group.check(work.batch)) for work in works)
        optimizer: Any = _StepAsOptimizer(self._parts.step, epochs)
        exchange = _Exchange(group.collections)
        kind = _PrefetchingPipeline if Prefetcher(group.collections) else TrainPipelineSparseDist
        self._pipeline = kind(exchange, optimizer, self._ranks.device, custom_model_fwd=self._forward)
        try:
            while True:
                try:
                    trained: Trained = self._pipeline.progress(checked)
                except StopIteration:  # what was read is trained
                    return
                yield trained
        finally:
            self._pipeline.detach()  # evaluation asks the tables without it
            self._pipeline = None

    def leave(self) -> None:
        """See `Loop`: wait for the ids under way, as their memory must not be given away before."""
        if self._pipeline is None:
            return
        for context in self._pipeline.contexts:
            for request in context.input_dist_tensors_requests.values():
                request.wait()
        self._pipeline.reset()

    def _forward(self, work: Work) -> tuple[Tensor, Trained]:
        loss, objective = self._parts.step.objective(partial(_loss, self._parts, work, self._ranks.world_size))
        return objective, Trained(loss / self._ranks.world_size, work.rows)


class _PrefetchingPipeline(TrainPipelineSparseDist):  # type: ignore[misc]
    """TorchRec's pipeline, where tables keep rows in a second tier: these are told of the next batch's ids once they have come, before backward."""

    def wait_sparse_data_dist(self, context: Any) -> None:
        """As TorchRec's, which lets ids be sent; and wait for them, which else the batch's own forward does."""
        super().wait_sparse_data_dist(context)
        for module in self._pipelined_modules:
            request = context.input_dist_tensors_requests.get(module.forward.name)
            if request is None:
                continue
            with self._stream_context(self._data_dist_stream):
                sent = request.wait()
            context.input_dist_tensors_requests[module.forward.name] = NoWait(sent)
            if self._data_dist_stream is not None:
                torch.get_device_module(self._device).current_stream().wait_stream(self._data_dist_stream)
            prefetch_sent(module, sent)


class _Exchange(nn.Module):
    """What a batch asks of each collection of tables, in a form in which TorchRec's tracer finds it: attributes and items of the batch alone.

    It is never run: the model asks the collections, and the pipeline, which holds the ids already, answers.

    Args:
        collections: sharded, by name.
    """

    def __init__(self, collections: dict[str, nn.Module]) -> None:
        super().__init__()
        self.collections = nn.ModuleDict(collections)

    def forward(self, work: Work) -> list[Any]:
        """Ask each collection."""
        asked: Any = work.batch.checked
        return [module(asked.asked[name].ids) for name, module in self.collections.items()]


class _StepAsOptimizer:
    """A training step where the pipeline, which goes forward and backward between, expects an optimiser.

    Args:
        step: of the run.
        epochs: passes over the data done before.
    """

    def __init__(self, step: TrainingStep, epochs: int) -> None:
        self._step, self._epochs = step, epochs

    def zero_grad(self) -> None:
        """Before the forward of a batch."""
        self._step.begin(self._epochs)

    def step(self) -> None:
        """After its backward."""
        self._step.learn()


def create_loop(parts: Parts, ranks: Ranks, *, pipelined: bool | None = None) -> Loop:
    """The loop of a run.

    Args:
        parts: of the run.
        ranks: all of them.
        pipelined: None: on GPUs only, as a CPU has nothing to do two things at a time with.
    """
    if pipelined is None:
        pipelined = ranks.device.type == "cuda"
    return PipelinedLoop(parts, ranks) if pipelined else PlainLoop(parts, ranks)


def _loss(parts: Parts, work: Work, num_ranks: int) -> Tensor:
    """Forward: the loss of a batch on its device, times the ranks: gradients are averaged over them, but their losses are to be added up."""
    outputs = {name: output.float() for name, output in parts.sharded(work.batch).items()}
    return total_loss(parts.model.tasks, outputs, work.batch.labels, work.batch.sample_weights, work.totals) * num_ranks
