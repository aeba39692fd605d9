"""Reading `model_config`: the model, its losses and metrics."""

import math
from collections.abc import Sequence
from typing import Any

from emberline.train.config.model_config import (
    MODEL_FIELDS,
    ArgumentValue,
    BinaryCrossEntropyConfig,
    CustomModelConfig,
    DssmConfig,
    L2LossConfig,
    LossConfig,
    MmoeConfig,
    ModelConfig,
    SoftmaxCrossEntropyConfig,
)
from emberline.train.config.protos import model_pb2
from emberline.train.config.ranges import at_least_one
from emberline.train.config.read import Reader
from emberline.train.config.text import Path
from emberline.train.features.sentences import Absence, prefixed

_RESERVED_ARGUMENT = "embedding_group"


def read_model(reader: Reader, message: model_pb2.Model, path: Path) -> ModelConfig | None:
    """The model config, or None where it names no model or something is wrong (then noted with the reader)."""
    where = "model_config"
    values: dict[str, Any] = {}
    is_whole = True
    for field, value in reader.accepted(message, where, path):
        if field.name == "feature_groups":
            continue
        if field.name == "custom_model":
            read: Any = _custom(reader, value, (*path, "custom_model", 0))
        else:
            read = reader.value(message, field, value, where, path)
        is_whole &= read is not None
        values[field.containing_oneof.name if field.containing_oneof else field.name] = read
    if not is_whole:
        return None
    if "model" not in values:
        inert = [name for name in values if name != "model"]
        if inert:
            reader.problems.add(path, Absence(f"{where}: {', '.join(inert)} without a model; set one of {', '.join(MODEL_FIELDS)}"))
        return None
    config = ModelConfig(**values)
    reader.problems.add_all(path, [f"{where}: {text}" for text in model_problems(config)])
    return config


def model_problems(config: ModelConfig) -> list[str]:
    """What is wrong with a model config's values, one sentence each."""
    found = at_least_one("num_class")(config)
    if isinstance(config.model, MmoeConfig):
        tasks = config.model.task_towers
        return found + [f"mmoe: task {task.tower_name!r}: {text}" for task in tasks for text in _loss_problems(task.losses, task.num_class)]
    return found + _loss_problems(config.losses, config.num_class, by_candidates=isinstance(config.model, DssmConfig))


def _loss_problems(losses: Sequence[LossConfig], num_class: int, *, by_candidates: bool = False) -> list[str]:
    """Losses must fit the number of classes, save where the softmax runs over candidates."""
    found = []
    for loss in losses:
        if isinstance(loss, BinaryCrossEntropyConfig | L2LossConfig) and num_class > 1:
            name = "binary_cross_entropy" if isinstance(loss, BinaryCrossEntropyConfig) else "l2_loss"
            found.append(f"{name} needs num_class: 1, found {num_class}; for classes use losses {{ softmax_cross_entropy {{}} }}")
        if isinstance(loss, SoftmaxCrossEntropyConfig):
            if num_class < 2 and not by_candidates:
                found.append(f"softmax_cross_entropy needs num_class of 2 or more, found {num_class}")
            if not 0.0 <= loss.label_smoothing < 1.0:
                found.append(f"label_smoothing must be in [0, 1), found {loss.label_smoothing}")
    kinds = [type(loss) for loss in losses]
    if len(set(kinds)) < len(kinds):
        found.append("losses has one kind twice")
    return found


def _custom(reader: Reader, message: model_pb2.CustomModel, path: Path) -> CustomModelConfig | None:
    where = "model_config: custom_model"
    found: list[str] = []
    parts = message.class_path.split(".")
    if not message.class_path:
        found.append(Absence("class_path is missing: the module's class as package.module.Class"))
    elif len(parts) < 2 or not all(part.isidentifier() for part in parts):
        found.append(f"class_path must be package.module.Class, found {message.class_path!r}")
    arguments: dict[str, ArgumentValue] = {}
    for argument in message.kwargs:
        read = _argument(argument, found)
        if read is not None and argument.name in arguments:
            found.append(f"kwargs has {argument.name!r} twice")
        elif read is not None:
            arguments[argument.name] = read
    reader.problems.add_all(path, [prefixed(where, text) for text in found])
    return None if found else CustomModelConfig(class_path=message.class_path, kwargs=tuple(arguments.items()))


def _argument(argument: model_pb2.Argument, found: list[str]) -> ArgumentValue | None:
    if not argument.name.isidentifier() or argument.name == _RESERVED_ARGUMENT:
        found.append(f"kwargs: name must be an argument of the class other than {_RESERVED_ARGUMENT}, found {argument.name!r}")
        return None
    values = [(field, value) for field, value in argument.ListFields() if field.name != "name"]
    if len(values) != 1:
        kinds = ", ".join(field.name for field in model_pb2.Argument.DESCRIPTOR.fields if field.name != "name")
        found.append(f"kwargs {argument.name!r} must have one value, found {len(values)}; set one of {kinds}")
        return None
    field, value = values[0]
    read: ArgumentValue = tuple(value) if field.is_repeated else value
    numbers = read if isinstance(read, tuple) else (read,)
    if any(isinstance(number, float) and not math.isfinite(number) for number in numbers):
        found.append(f"kwargs {argument.name!r} must be finite")
        return None
    return read
