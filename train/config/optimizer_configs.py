"""Optimisers, by the names of `optimizer.proto`."""

from dataclasses import asdict, dataclass, field
from enum import StrEnum

from emberline.train.config.schedule_configs import ConstantLrConfig, LearningRate


@dataclass(frozen=True, kw_only=True)
class SparseOptimizer:
    """What all optimisers of tables have; each of them is a class below.

    Args:
        lr: the learning rate.
        gradient_clipping: whether each number of the gradient of a looked-up vector is kept within `max_gradient`, before the gradients of a row
            are added up.
        max_gradient: the bound.
    """

    lr: float = 0.002
    gradient_clipping: bool = False
    max_gradient: float = 1.0


@dataclass(frozen=True, kw_only=True)
class FusedSgdConfig(SparseOptimizer):
    """SGD, applied in backward to the rows of a batch."""


@dataclass(frozen=True, kw_only=True)
class FusedAdagradConfig(SparseOptimizer):
    """Adagrad with one accumulator a weight, applied in backward to the rows of a batch; accumulators begin with `initial_accumulator_value`."""

    initial_accumulator_value: float = 0.0


class WeightDecayMode(StrEnum):
    """How row-wise Adagrad shrinks weights."""

    NONE = "NONE"
    L2 = "L2"
    DECOUPLE = "DECOUPLE"


@dataclass(frozen=True, kw_only=True)
class FusedRowWiseAdagradConfig(SparseOptimizer):
    """Adagrad with one accumulator a row, applied in backward to the rows of a batch; accumulators begin with `initial_accumulator_value`."""

    initial_accumulator_value: float = 0.0
    weight_decay: float = 0.0
    weight_decay_mode: WeightDecayMode = WeightDecayMode.NONE


@dataclass(frozen=True, kw_only=True)
class FusedAdamConfig(SparseOptimizer):
    """Adam, applied in backward to the rows of a batch; weight decay does not pass through the moments."""

    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 0.0


@dataclass(frozen=True, kw_only=True)
class FusedPartialRowWiseAdamConfig(FusedAdamConfig):
    """Adam with one second moment a row."""


@dataclass(frozen=True, kw_only=True)
class FusedLambConfig(FusedAdamConfig):
    """LAMB: Adam, with the rate of each row by the norms of its weights and of its update."""


@dataclass(frozen=True, kw_only=True)
class FusedPartialRowWiseLambConfig(FusedAdamConfig):
    """LAMB with one second moment a row."""


@dataclass(frozen=True, kw_only=True)
class FusedLarsSgdConfig(SparseOptimizer):
    """SGD with momentum, with the rate of each row by the norms of its weights and of its gradient."""

    momentum: float = 0.9
    weight_decay: float = 0.0


@dataclass(frozen=True, kw_only=True)
class FusedAdadeltaConfig(SparseOptimizer):
    """AdaDelta, applied in backward to the rows of a batch; on the CPU only."""

    rho: float = 0.9
    eps: float = 1e-6
    weight_decay: float = 0.0


@dataclass(frozen=True, kw_only=True)
class FusedRmsPropConfig(SparseOptimizer):
    """RMSprop, applied in backward to the rows of a batch; on the CPU only."""

    alpha: float = 0.99
    eps: float = 1e-8
    weight_decay: float = 0.0


@dataclass(frozen=True, kw_only=True)
class SgdConfig:
    """`torch.optim.SGD`."""

    lr: float = 0.002
    momentum: float = 0.9
    weight_decay: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False

    def arguments(self) -> dict[str, object]:
        """The arguments of torch's class."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class AdagradConfig:
    """`torch.optim.Adagrad`."""

    lr: float = 0.002
    weight_decay: float = 0.0
    initial_accumulator_value: float = 0.0
    eps: float = 1e-10

    def arguments(self) -> dict[str, object]:
        """The arguments of torch's class."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class AdamConfig:
    """`torch.optim.Adam`."""

    lr: float = 0.002
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    amsgrad: bool = False

    def arguments(self) -> dict[str, object]:
        """The arguments of torch's class."""
        return {"lr": self.lr, "betas": (self.beta1, self.beta2), "eps": self.eps, "weight_decay": self.weight_decay, "amsgrad": self.amsgrad}


@dataclass(frozen=True, kw_only=True)
class AdamWConfig(AdamConfig):
    """`torch.optim.AdamW`: Adam whose weight decay does not pass through the moments."""


@dataclass(frozen=True, kw_only=True)
class AdadeltaConfig:
    """`torch.optim.Adadelta`."""

    lr: float = 0.002
    rho: float = 0.9
    eps: float = 1e-6
    weight_decay: float = 0.0

    def arguments(self) -> dict[str, object]:
        """The arguments of torch's class."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class RmsPropConfig:
    """`torch.optim.RMSprop`."""

    lr: float = 0.002
    alpha: float = 0.99
    eps: float = 1e-8
    weight_decay: float = 0.0
    momentum: float = 0.0
    centered: bool = False

    def arguments(self) -> dict[str, object]:
        """The arguments of torch's class."""
        return asdict(self)


DenseOptimizer = SgdConfig | AdagradConfig | AdamConfig | AdamWConfig | AdadeltaConfig | RmsPropConfig


@dataclass(frozen=True, kw_only=True)
class SparseOptimizerConfig:
    """The optimiser of embedding tables."""

    optimizer: SparseOptimizer
    learning_rate: LearningRate = field(default_factory=ConstantLrConfig)


@dataclass(frozen=True, kw_only=True)
class PartOptimizerConfig:
    """Another optimiser for some of the dense parameters.

    Args:
        regex_pattern: the whole name of a parameter must fit it.
        optimizer: of these parameters.
        learning_rate: its schedule; None: that of the main dense optimiser.
    """

    regex_pattern: str
    optimizer: DenseOptimizer
    learning_rate: LearningRate | None = None


@dataclass(frozen=True, kw_only=True)
class DenseOptimizerConfig:
    """The optimisers of everything else: of each parameter the first part that its name fits, or else the main one."""

    optimizer: DenseOptimizer
    learning_rate: LearningRate = field(default_factory=ConstantLrConfig)
    part_optimizers: tuple[PartOptimizerConfig, ...] = ()
