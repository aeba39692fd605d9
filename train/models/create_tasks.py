"""From a config to the tasks of its model."""

from collections import Counter
from collections.abc import Sequence

from emberline.errors import ConfigError
from emberline.train.config.model_config import (
    AucConfig,
    BinaryCrossEntropyConfig,
    CustomModelConfig,
    DssmConfig,
    LossConfig,
    MmoeConfig,
    ModelConfig,
    RecallAtKConfig,
    SoftmaxCrossEntropyConfig,
    TaskTowerConfig,
)
from emberline.train.config.pipeline import PipelineConfig
from emberline.train.models.tasks import LogitTask, MatchTask, Task


def create_tasks(config: PipelineConfig) -> tuple[Task, ...]:
    """What the config's model is trained for. A config without label columns is fine where nothing is trained.

    Raises:
        ConfigError: losses, metrics, classes or labels do not belong together.
    """
    model, labels = config.need_model(), config.data.label_fields
    label = labels[0] if labels else ""
    if config.data.negatives_from and not isinstance(model.model, DssmConfig | CustomModelConfig):
        raise ConfigError(f"data_config: {config.data.negatives_from} is for dssm: {model.name} compares no candidates", config.source)
    match model.model:
        case MmoeConfig():
            _check_mmoe(model, model.model.task_towers, config.source)
            return tuple(_task_of(tower, config.source) for tower in model.model.task_towers)
        case DssmConfig():
            return (_dssm_task(model, model.model, label, config),)
        case _:
            _check_losses(model.losses, model.num_class, "model_config", config.source)
            _refuse_recall(model, config.source)
            return (LogitTask(losses=model.losses, label=label, num_class=model.num_class),)


def _task_of(tower: TaskTowerConfig, source: str) -> LogitTask:
    _check_losses(tower.losses, tower.num_class, f"mmoe: task {tower.tower_name!r}", source)
    return LogitTask(losses=tower.losses, label=tower.label_name, num_class=tower.num_class, name=tower.tower_name, weight=tower.weight)


def _check_mmoe(model: ModelConfig, towers: Sequence[TaskTowerConfig], source: str) -> None:
    problems = []
    if not towers:
        problems.append("mmoe: has no task_towers; add one for each label")
    for name in ("losses", "metrics", "num_class"):
        if getattr(model, name) != getattr(ModelConfig, name):
            problems.append(f"model_config: {name} has no meaning for mmoe; set it in each of its task_towers")
    counts = Counter(tower.tower_name for tower in towers)
    problems += [f"mmoe: {count} tasks are called {name!r}; give each a name of its own" for name, count in counts.items() if count > 1]
    for tower in towers:
        if any(isinstance(metric, RecallAtKConfig) for metric in tower.metrics):
            problems.append(f"mmoe: task {tower.tower_name!r}: recall_at_k is for dssm")
    if problems:
        raise ConfigError(problems, source)


def _dssm_task(model: ModelConfig, dssm: DssmConfig, label: str, config: PipelineConfig) -> Task:
    kinds = {type(loss) for loss in model.losses}
    origin = config.data.negatives_from
    problems = []
    if model.num_class != 1:
        problems.append(f"dssm: num_class must be 1, found {model.num_class}")
    if kinds == {BinaryCrossEntropyConfig} and dssm.in_batch_negative:
        problems.append("dssm: in_batch_negative needs losses { softmax_cross_entropy {} }: binary_cross_entropy looks at each row by itself")
    elif kinds == {SoftmaxCrossEntropyConfig} and not dssm.in_batch_negative and not origin:
        problems.append(
            "dssm: softmax_cross_entropy needs negatives: set in_batch_negative: true, or negative_columns or negative_sampler in data_config"
        )
    elif kinds == {BinaryCrossEntropyConfig} and origin:
        problems.append(f"dssm: {origin} needs losses {{ softmax_cross_entropy {{}} }}: binary_cross_entropy looks at each row by itself")
    elif kinds not in ({BinaryCrossEntropyConfig}, {SoftmaxCrossEntropyConfig}):
        problems.append("dssm: losses must be one: softmax_cross_entropy with negatives, or binary_cross_entropy for each row by itself")
    by_candidates = kinds == {SoftmaxCrossEntropyConfig}
    if by_candidates and len(model.metrics) > 1 and any(isinstance(metric, AucConfig) for metric in model.metrics):
        problems.append("dssm: metrics: auc is for binary_cross_entropy; with softmax_cross_entropy use recall_at_k")
    if problems:
        raise ConfigError(problems, config.source)
    loss = model.losses[0]
    if not isinstance(loss, SoftmaxCrossEntropyConfig):
        _refuse_recall(model, config.source)
        return LogitTask(losses=model.losses, label=label)
    top_ks = tuple(dict.fromkeys(metric.top_k for metric in model.metrics if isinstance(metric, RecallAtKConfig)))
    return MatchTask(
        label=label,
        temperature=dssm.temperature,
        in_batch=dssm.in_batch_negative,
        shared=config.data.negative_sampler is not None,
        label_smoothing=loss.label_smoothing,
        top_ks=top_ks or (1,),
    )


def _refuse_recall(model: ModelConfig, source: str) -> None:
    if any(isinstance(metric, RecallAtKConfig) for metric in model.metrics):
        raise ConfigError("model_config: metrics: recall_at_k needs dssm with softmax_cross_entropy: other models compare no candidates", source)


def _check_losses(losses: Sequence[LossConfig], num_class: int, where: str, source: str) -> None:
    """Losses and classes that belong together."""
    kinds = {type(loss) for loss in losses}
    if not kinds:
        raise ConfigError(f"{where} has no losses; add binary_cross_entropy {{}}", source)
    if len(kinds) > 1:
        raise ConfigError(f"{where} has losses of several kinds, which need different outputs; keep one", source)
    prefix = "" if where == "model_config" else f"{where}: "
    if SoftmaxCrossEntropyConfig in kinds and num_class < 2:
        raise ConfigError(f"{prefix}softmax_cross_entropy needs num_class of at least 2, found {num_class}", source)
    if SoftmaxCrossEntropyConfig not in kinds and num_class != 1:
        name = "binary_cross_entropy" if BinaryCrossEntropyConfig in kinds else "l2_loss"
        raise ConfigError(f"{prefix}{name} needs num_class 1, found {num_class}; for several classes use softmax_cross_entropy", source)
