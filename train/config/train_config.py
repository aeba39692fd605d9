"""How long to train, what to log and save, how to evaluate and export."""

from dataclasses import dataclass, field

from emberline.train.config.optimizer_configs import DenseOptimizerConfig, SparseOptimizerConfig
from emberline.train.config.planner_config import PlannerConfig
from emberline.train.features.configs import EmbeddingConstraints


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """One training run.

    Args:
        sparse_optimizer: the optimiser of embedding tables.
        dense_optimizer: the optimiser of everything else.
        planner: the hardware that tables are planned for.
        global_embedding_constraints: of tables whose features do not say otherwise; None: none.
        num_steps: batches in all; None: as many as `num_epochs` has. With both set, whichever ends first.
        num_epochs: passes over the data; None means 1 where `num_steps` is None too, else no bound.
        save_checkpoints_steps: batches between two checkpoints; 0: none by steps. A run always ends with one.
        save_checkpoints_epochs: epochs between two checkpoints; 0: none by epochs.
        keep_checkpoint_max: newest checkpoints kept; 0 keeps all.
        log_step_count_steps: batches between two log lines.
        use_tensorboard: whether to write TensorBoard events.
        tensorboard_summaries: what is written: `loss`, `learning_rate`.
        seed: of initial weights and of the order of rows.
    """

    sparse_optimizer: SparseOptimizerConfig
    dense_optimizer: DenseOptimizerConfig
    planner: PlannerConfig = field(default_factory=PlannerConfig)
    global_embedding_constraints: EmbeddingConstraints | None = None
    num_steps: int | None = None
    num_epochs: int | None = None
    save_checkpoints_steps: int = 1000
    save_checkpoints_epochs: int = 0
    keep_checkpoint_max: int = 0
    log_step_count_steps: int = 100
    use_tensorboard: bool = True
    tensorboard_summaries: tuple[str, ...] = ("loss", "learning_rate")
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """How to evaluate.

    Args:
        num_steps: most batches; None: all of the data.
        log_step_count_steps: batches between two updates of the progress.
    """

    num_steps: int | None = None
    log_step_count_steps: int = 10


@dataclass(frozen=True, kw_only=True)
class ExportConfig:
    """What to export. Only the newest checkpoint, in float32, so far."""
