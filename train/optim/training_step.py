"""One step of training, from a loss to new parameters."""

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torchrec.distributed.model_parallel import DistributedModelParallel

from emberline.errors import TrainingError
from emberline.train.config.train_config import MixedPrecision, TrainConfig
from emberline.train.optim.border import TableBorder
from emberline.train.optim.clipping import clip_gradients
from emberline.train.optim.dense import ModelOptimizer
from emberline.train.optim.ema import DenseEma
from emberline.train.optim.scaler import LossScaler

_DTYPES = {MixedPrecision.BF16: torch.bfloat16, MixedPrecision.FP16: torch.float16}


class TrainingStep:
    """Everything that happens to a model in a step.

        forward, loss ─► x scale ─► backward ─► / scale, all finite? ─► tables learn ─► clip ─► dense step ─► average ─► new scale
                                                        └─ no: nothing is updated ─────────────────────────────────────► new scale

    Without a scaler the tables learn in backward.

    Args:
        model: sharded, with the sparse optimiser on its tables.
        config: precision, scaler, clipping, average, optimisers.
        frozen: tables that do not learn.
    """

    def __init__(self, model: DistributedModelParallel, config: TrainConfig, frozen: Collection[str] = ()) -> None:
        self._config = config
        self._device = torch.device(model.device)
        self.optimizer = ModelOptimizer(model, config.dense_optimizer, config.sparse_optimizer)
        self.ema = DenseEma(self.optimizer.parameters, config.ema.decay) if config.ema is not None else None
        self.scaler = LossScaler(config.grad_scaler, self._device) if config.grad_scaler is not None else None
        sparse = config.sparse_optimizer.optimizer
        bound = sparse.max_gradient if sparse.gradient_clipping else None
        self._border = TableBorder(model, frozen=frozen, bound=bound, hold=self.scaler is not None)

    def run(self, loss_of: Callable[[], Tensor], steps: int = 0, epochs: int = 0) -> Tensor:
        """Do a step.

        Args:
            loss_of: the model's forward and the loss of a batch, a scalar.
            steps: steps done before.
            epochs: passes over the data done before.

        Returns:
            the loss, without gradient.

        Raises:
            TrainingError: nothing learns, or gradients are not finite at any scale.
        """
        self.optimizer.start_step(steps, epochs)
        self._border.discard()
        with self._precision():
            loss = loss_of()
        if not loss.requires_grad:
            raise TrainingError("nothing in this model learns: its tables are frozen, and it has no other parameters; let one of its tables learn")
        if self.scaler is None:
            torch.autograd.backward(loss)
            self._update_dense()
        else:
            self._scaled_update(loss, self.scaler)
        return loss.detach()

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

    def _scaled_update(self, loss: Tensor, scaler: LossScaler) -> None:
        torch.autograd.backward(loss * scaler.scale)
        dense = [parameter.grad for parameter in self.optimizer.parameters.values() if parameter.grad is not None]
        if scaler.unscale([*dense, *self._border.gradients()]):
            self._border.release()
            self._update_dense()
        else:
            self._border.discard()
        scaler.update()

    def _update_dense(self) -> None:
        clip_gradients(self.optimizer.parameters.values(), self._config.grad_clipping)
        self.optimizer.step()
        if self.ema is not None:
            self.ema.update()
