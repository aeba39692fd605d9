"""One step of training, from a loss to new parameters."""

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torchrec.distributed.model_parallel import DistributedModelParallel

from emberline.errors import TrainingError
from emberline.train.config.train_config import MixedPrecision, TrainConfig
from emberline.train.optim.border import TableBorder
from emberline.train.optim.clipping import clip_gradients, clip_with_tables
from emberline.train.optim.dense import ModelOptimizer
from emberline.train.optim.ema import DenseEma
from emberline.train.optim.held import HeldUpdates
from emberline.train.optim.scaler import LossScaler

_DTYPES = {MixedPrecision.BF16: torch.bfloat16, MixedPrecision.FP16: torch.float16}


class TrainingStep:
    """Everything that happens to a model in a step.

        forward, loss ─► x scale ─► backward ─► / scale, all finite? ─► tables learn ─► clip ─► dense step ─► average ─► new scale
        └── of one batch, or of several ──┘                 └─ no: nothing is updated ────────────────────────────────► new scale

    Without a scaler the tables learn in backward, unless gradients of several batches are added up first, or clipped by a norm that they are part
    of: then they wait for it.

    Args:
        model: sharded, with the sparse optimiser on its tables.
        config: precision, scaler, clipping, average, optimisers, batches of a step.
        frozen: tables that do not learn.

    Raises:
        ConfigError: a part's pattern fits no parameter, or a table would have to wait, and is in a kernel that learns at once.
    """

    def __init__(self, model: DistributedModelParallel, config: TrainConfig, frozen: Collection[str] = ()) -> None:
        self._config = config
        self._device = torch.device(model.device)
        self._batches = max(config.gradient_accumulation_steps, 1)
        self.optimizer = ModelOptimizer(model, config.dense_optimizer, config.sparse_optimizer)
        self.ema = DenseEma(self.optimizer.parameters, config.ema.decay) if config.ema is not None else None
        self.scaler = LossScaler(config.grad_scaler, self._device) if config.grad_scaler is not None else None
        sparse = config.sparse_optimizer.optimizer
        bound = sparse.max_gradient if sparse.gradient_clipping else None
        self._border = TableBorder(model, frozen=frozen, bound=bound, hold=self.scaler is not None)
        clipping = config.grad_clipping
        self._clips_tables = clipping is not None and clipping.enable_global_grad_clip
        asked_by = "gradient_accumulation_steps" if self._batches > 1 else "grad_clipping: enable_global_grad_clip"
        self._held = HeldUpdates(model, frozen, asked_by) if self._batches > 1 or self._clips_tables else None
        self.steps = 0
        """Steps done, those included that a scaler left out."""
        self.pending = 0
        """Batches of the step under way."""
        self.rates: dict[str, float] = {}
        """The rates of the step under way, or of the last one."""

    def run(self, loss_of: Callable[[], Tensor], epochs: int = 0) -> Tensor:
        """Learn from a batch; of several that make a step, the last one ends it.

        Args:
            loss_of: the model's forward and the loss of the batch, a scalar.
            epochs: passes over the data done before.

        Returns:
            the loss, without gradient.

        Raises:
            TrainingError: nothing learns, or gradients are not finite at any scale.
        """
        self.begin(epochs)
        loss, objective = self.objective(loss_of)
        torch.autograd.backward(objective)
        self.learn()
        return loss

    def begin(self, epochs: int = 0) -> None:
        """The first quarter of `run`, for a loop that goes backward by itself: what comes before the forward of a batch."""
        if not self.pending:
            self._start(epochs)

    def objective(self, loss_of: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
        """The second quarter: forward.

        Returns:
            the loss, without gradient; and what to go backward from, the third quarter.

        Raises:
            TrainingError: nothing learns.
        """
        with self._precision():
            loss = loss_of()
        if not loss.requires_grad:
            raise TrainingError("nothing in this model learns: its tables are frozen, and it has no other parameters; let one of its tables learn")
        objective = loss / self._batches if self._batches > 1 else loss
        return loss.detach(), objective if self.scaler is None else objective * self.scaler.scale

    def learn(self) -> None:
        """The last quarter: take the gradients in, and end the step if this was its last batch.

        Raises:
            TrainingError: gradients are not finite at any scale.
        """
        if self.scaler is not None:
            self.scaler.unscale(self._border.gradients())
            if self._held is not None:
                self._border.release()
        self.pending += 1
        if self.pending == self._batches:
            self.finish()

    def finish(self) -> None:
        """End a step that has fewer batches than others; nothing where no batch is pending.

        Raises:
            TrainingError: gradients are not finite at any scale.
        """
        if not self.pending:
            return
        share = self.pending / self._batches
        self.steps, self.pending = self.steps + 1, 0
        dense = [parameter.grad for parameter in self.optimizer.parameters.values() if parameter.grad is not None]
        if self.scaler is not None and not self.scaler.unscale(dense).all_finite():
            self._drop()
        else:
            self._update(dense, share)
        if self.scaler is not None:
            self.scaler.update()

    def tensors(self) -> dict[str, Tensor]:
        """The live tensors that a checkpoint needs beside the optimisers': `ema/...` of each dense parameter, `scaler/...`."""
        tensors = {f"ema/{name}": average for name, average in self.ema.averages.items()} if self.ema is not None else {}
        if self.scaler is not None:
            tensors |= {"scaler/scale": self.scaler.scale, "scaler/steps_since_growth": self.scaler.steps_since_growth}
        return tensors

    def averaged(self, wanted: bool = True) -> AbstractContextManager[None]:
        """While the body runs, the dense parameters are their moving averages, where there are some and they are wanted."""
        return self.ema.in_place() if self.ema is not None and wanted else nullcontext()

    def _precision(self) -> AbstractContextManager[object]:
        dtype = _DTYPES.get(self._config.mixed_precision)
        return torch.autocast(self._device.type, dtype=dtype) if dtype is not None else nullcontext()

    def _start(self, epochs: int) -> None:
        self.rates = self.optimizer.start_step(self.steps, epochs)
        self._drop()  # what a batch left that failed
        if self.scaler is not None:
            self.scaler.start()

    def _drop(self) -> None:
        self._border.discard()
        if self._held is not None:
            self._held.drop()

    def _update(self, dense: list[Tensor], share: float) -> None:
        """Update everything; gradients are divided by the share of a whole step's batches that they are of."""
        self._border.release()
        if share < 1.0 and dense:
            torch._foreach_div_(dense, share)
        parameters, clipping = self.optimizer.parameters.values(), self._config.grad_clipping
        if self._clips_tables and clipping is not None and self._held is not None:
            share = clip_with_tables(parameters, self._held, clipping, share)
        else:
            clip_gradients(parameters, clipping)
        if self._held is not None:
            self._held.apply(share)
        self.optimizer.step()
        if self.ema is not None:
            self.ema.update()
