"""How long to train, what to log and save, how to evaluate and export."""

from dataclasses import dataclass, field
from enum import StrEnum

from emberline.train.config.optimizer_configs import DenseOptimizerConfig, SparseOptimizerConfig
from emberline.train.config.planner_config import PlannerConfig, TableConstraintsConfig
from emberline.train.features.configs import EmbeddingConstraints


class MixedPrecision(StrEnum):
    """In which type the dense part computes; parameters, losses and tables stay in float32."""

    NONE = ""
    BF16 = "BF16"
    FP16 = "FP16"


class ClippingType(StrEnum):
    """How gradients of the dense part are bounded."""

    NONE = "none"
    NORM = "norm"
    VALUE = "value"


@dataclass(frozen=True, kw_only=True)
class GradScalerConfig:
    """The loss is multiplied by a scale, so that small gradients are not lost in half precision.

    A step with gradients that are not finite is left out.

    Args:
        init_scale: the scale of the first step.
        growth_factor: the scale grows by it after `growth_interval` steps without such gradients.
        backoff_factor: the scale shrinks by it after a step that was left out.
        growth_interval: steps.
    """

    init_scale: float = 65536.0
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000


@dataclass(frozen=True, kw_only=True)
class GradClippingConfig:
    """Bounds the gradients of the dense part, or of the whole model.

    Args:
        clipping_type: the norm of all gradients together, each number of them, or nothing.
        max_gradient: the bound.
        norm_type: the p of the norm; may be infinite.
        enable_global_grad_clip: whether tables are part of the norm, and clipped by it too; they then wait for it.
    """

    clipping_type: ClippingType
    max_gradient: float = 1.0
    norm_type: float = 2.0
    enable_global_grad_clip: bool = False


@dataclass(frozen=True, kw_only=True)
class DenseEmaConfig:
    """A moving average of the dense parameters, which evaluation and export use.

    Args:
        decay: how much of the average stays at each step, in [0, 1).
    """

    decay: float = 0.999


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """One training run.

    Args:
        sparse_optimizer: the optimiser of embedding tables.
        dense_optimizer: the optimiser of everything else.
        planner: the hardware that tables are planned for.
        global_embedding_constraints: of tables whose features do not say otherwise; None: none.
        table_constraints: of single tables, each once.
        num_steps: batches in all; None: as many as `num_epochs` has. With both set, whichever ends first.
        num_epochs: passes over the data; None means 1 where `num_steps` is None too, else no bound.
        save_checkpoints_steps: batches between two checkpoints; 0: none by steps. A run always ends with one.
        save_checkpoints_epochs: epochs between two checkpoints; 0: none by epochs.
        save_checkpoints_async: write checkpoints while training goes on, from a copy in memory.
        save_increments_steps: batches between two increments of dynamic tables, what they have learnt since the one before; 0: none.
        keep_checkpoint_max: newest checkpoints kept; 0 keeps all.
        log_step_count_steps: batches between two log lines.
        use_tensorboard: whether to write TensorBoard events.
        tensorboard_summaries: what is written: `loss`, `learning_rate`.
        seed: of initial weights and of the order of rows.
        mixed_precision: of the dense part's forward and backward.
        grad_scaler: None for none.
        gradient_accumulation_steps: batches whose gradients make one step; 0 as 1.
        grad_clipping: None for none.
        ema: None for none.
    """

    sparse_optimizer: SparseOptimizerConfig
    dense_optimizer: DenseOptimizerConfig
    planner: PlannerConfig = field(default_factory=PlannerConfig)
    global_embedding_constraints: EmbeddingConstraints | None = None
    table_constraints: tuple[TableConstraintsConfig, ...] = ()
    num_steps: int | None = None
    num_epochs: int | None = None
    save_checkpoints_steps: int = 1000
    save_checkpoints_epochs: int = 0
    save_checkpoints_async: bool = True
    save_increments_steps: int = 0
    keep_checkpoint_max: int = 0
    log_step_count_steps: int = 100
    use_tensorboard: bool = True
    tensorboard_summaries: tuple[str, ...] = ("loss", "learning_rate")
    seed: int = 0
    mixed_precision: MixedPrecision = MixedPrecision.NONE
    grad_scaler: GradScalerConfig | None = None
    gradient_accumulation_steps: int = 1
    grad_clipping: GradClippingConfig | None = None
    ema: DenseEmaConfig | None = None

    @property
    def constraints_by_table(self) -> dict[str, EmbeddingConstraints]:
        """`table_constraints` by table."""
        return {constraints.table: constraints for constraints in self.table_constraints}


@dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """How to evaluate.

    Args:
        num_steps: most batches; None: all of the data.
        log_step_count_steps: batches between two updates of the progress.
    """

    num_steps: int | None = None
    log_step_count_steps: int = 10


class ExporterType(StrEnum):
    """Which checkpoint of a run counts."""

    LATEST = "latest"
    BEST = "best"


@dataclass(frozen=True, kw_only=True)
class ExportConfig:
    """What to keep for export, and how to export it; in float32, so far.

    Args:
        exporter_type: with `best`, each evaluation has a checkpoint, and the best one stays: `RUN/best`.
        best_exporter_metric: of the evaluation set, what the best is best by.
        metric_larger_is_better: whether larger numbers of it are better.
        use_dense_ema: whether the dense parameters are their moving averages, in evaluations too; None: where there are some.
    """

    exporter_type: ExporterType = ExporterType.LATEST
    best_exporter_metric: str = "auc"
    metric_larger_is_better: bool = True
    use_dense_ema: bool | None = None
