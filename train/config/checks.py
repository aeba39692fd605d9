"""What is wrong with the values of one dataclass, looked at alone: checked as soon as it is read, so that nothing hides behind a bigger mistake."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from emberline.schema import INT64_MAX
from emberline.train.config.data_config import NegativeColumnsConfig, NegativeSamplerConfig
from emberline.train.config.model_config import (
    DeepFmConfig,
    DinTowerConfig,
    DssmConfig,
    MlpConfig,
    MmoeConfig,
    RecallAtKConfig,
    TaskTowerConfig,
    TowerConfig,
    WideAndDeepConfig,
)
from emberline.train.config.optimizer_checks import CHECKS as _STEP_CHECKS
from emberline.train.config.planner_config import PlannerConfig, TableConstraintsConfig, planner_problems
from emberline.train.config.ranges import Check, above_zero, at_least_one
from emberline.train.config.train_config import EvalConfig, TrainConfig
from emberline.train.features.constraints import constraint_problems
from emberline.train.features.names import named_problem

SUMMARIES = ("loss", "learning_rate")


def problems_of(config: Any) -> list[str]:
    """One sentence for each problem of a dataclass that was just read."""
    check = _CHECKS.get(type(config))
    return check(config) if check else []


def mlp_problems(mlp: MlpConfig) -> list[str]:
    """Layers, ratios and normalisation must fit together."""
    found = []
    if not all(width > 0 for width in mlp.hidden_units):
        found.append("hidden_units must be at least 1 each")
    if len(mlp.dropout_ratio) not in (0, 1, len(mlp.hidden_units)):
        found.append(f"dropout_ratio has {len(mlp.dropout_ratio)} values for {len(mlp.hidden_units)} layers; give none, one, or one a layer")
    if not all(0.0 <= ratio < 1.0 for ratio in mlp.dropout_ratio):
        found.append("dropout_ratio must be in [0, 1)")
    if mlp.use_bn and mlp.use_ln:
        found.append("use_bn and use_ln exclude each other")
    return found


def tower_problems(config: TowerConfig | DinTowerConfig) -> list[str]:
    """A tower must have a group, and layers."""
    mlp = config.mlp if isinstance(config, TowerConfig) else config.attn_mlp
    found = [] if config.input else ["input must name a feature group"]
    return found + ([] if mlp.hidden_units else [f"{'mlp' if isinstance(config, TowerConfig) else 'attn_mlp'} needs hidden_units"])


def dssm_problems(config: DssmConfig) -> list[str]:
    """Vectors must have a width, and similarities a scale."""
    return at_least_one("output_dim")(config) + above_zero("temperature")(config)


def task_problems(config: TaskTowerConfig) -> list[str]:
    """A task's name ends names of outputs; its weight scales its loss."""
    found = at_least_one("num_class")(config)
    if problem := named_problem("tower_name", config.tower_name):
        found.append(problem)
    if not config.label_name:
        found.append("label_name must name a column of labels")
    return found + above_zero("weight")(config)


def negative_problems(config: NegativeColumnsConfig) -> list[str]:
    """There must be columns, and each negative's column is another than that of the item itself."""
    found = at_least_one("num_negatives")(config)
    if not config.columns:
        found.append("columns must name a column of negatives for each column that item features read")
    found += [f"columns: {column!r} is its own column of negatives" for column, negatives in config.columns if column == negatives]
    return found


def sampler_problems(config: NegativeSamplerConfig) -> list[str]:
    """There must be items, something to draw, and columns to make features of."""
    found = at_least_one("num_sample")(config)
    found += [f"{name} must not be empty" for name in ("input_path", "item_id_field") if not getattr(config, name)]
    if not config.attr_fields or not all(config.attr_fields):
        found.append("attr_fields must name the columns of items that features read")
    repeated = sorted({name for name in config.attr_fields if config.attr_fields.count(name) > 1})
    return found + [f"attr_fields has {name!r} more than once" for name in repeated]


def train_problems(config: TrainConfig) -> list[str]:
    """One sentence for each problem."""
    found = at_least_one("num_steps", "num_epochs", "log_step_count_steps")(config)
    found += [
        f"tensorboard_summaries: {name!r} is not supported yet; known: {', '.join(SUMMARIES)}"
        for name in config.tensorboard_summaries
        if name not in SUMMARIES
    ]
    if config.seed > INT64_MAX:
        found.append(f"seed must be below 2^63, found {config.seed}")
    if config.global_embedding_constraints is not None:
        found += [f"global_embedding_constraints: {text}" for text in constraint_problems(config.global_embedding_constraints)]
    counts = Counter(constraints.table for constraints in config.table_constraints)
    return found + [f"table_constraints: table {name!r} is there {count} times; keep one" for name, count in counts.items() if count > 1]


def table_constraint_problems(config: TableConstraintsConfig) -> list[str]:
    """One sentence for each problem that one table's constraints have whatever the table is."""
    return [f"table {config.table!r}: {text}" for text in constraint_problems(config)]


_CHECKS: Mapping[type[Any], Check] = {
    MlpConfig: mlp_problems,
    DeepFmConfig: at_least_one("wide_embedding_dim"),
    WideAndDeepConfig: at_least_one("wide_embedding_dim"),
    TowerConfig: tower_problems,
    DinTowerConfig: tower_problems,
    DssmConfig: dssm_problems,
    MmoeConfig: at_least_one("num_expert"),
    TaskTowerConfig: task_problems,
    RecallAtKConfig: at_least_one("top_k"),
    NegativeColumnsConfig: negative_problems,
    NegativeSamplerConfig: sampler_problems,
    PlannerConfig: planner_problems,
    TrainConfig: train_problems,
    TableConstraintsConfig: table_constraint_problems,
    EvalConfig: at_least_one("num_steps", "log_step_count_steps"),
    **_STEP_CHECKS,
}
