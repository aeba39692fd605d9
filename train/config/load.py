"""From a config file to `PipelineConfig`: the edge where text becomes dataclasses."""

import logging
import os
from dataclasses import replace
from pathlib import Path as FilePath
from typing import Any

from emberline.errors import ConfigError
from emberline.train.config.dynamic_rules import dynamic_training_problems
from emberline.train.config.group_configs import FeatureGroupConfig
from emberline.train.config.groups import group_problems, unused_features
from emberline.train.config.pipeline import PipelineConfig
from emberline.train.config.problems import Problems
from emberline.train.config.protos import group_pb2, pipeline_pb2, train_pb2
from emberline.train.config.read import Reader
from emberline.train.config.read_data import read_data
from emberline.train.config.read_features import read_features, standing_alone
from emberline.train.config.read_model import read_model
from emberline.train.config.table_reads import WideTables
from emberline.train.config.table_rules import constrained_table_problems
from emberline.train.config.text import Path, parse_text
from emberline.train.config.train_config import EvalConfig, ExportConfig, TrainConfig
from emberline.train.features.feature import Feature
from emberline.train.features.notes import notes_of
from emberline.train.features.sentences import Absence

_logger = logging.getLogger(__name__)


def load_config(path: str | os.PathLike[str]) -> PipelineConfig:
    """Read a config file: a whole pipeline, or just features and groups.

    Paths of vocabularies are relative to the file's folder; paths of data are taken as they are.

    Raises:
        ConfigError: the file can't be read, or is wrong; it lists every problem found.
    """
    source = os.fspath(path)
    try:
        text = FilePath(source).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"the config can't be read: {error.strerror or error}", source) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"the config is not UTF-8 text: byte {error.start} can't be read", source) from None
    return parse_config(text, source, FilePath(source).parent)


def parse_config(text: str, source: str = "", folder: FilePath | None = None) -> PipelineConfig:
    """Read a config's text.

    Args:
        text: protobuf text of `emberline.config.Pipeline`.
        source: where it came from, for messages.
        folder: what paths of vocabularies are relative to; None: the current folder.

    Raises:
        ConfigError: it lists every problem found.
    """
    message, text_problems = parse_text(text, pipeline_pb2.Pipeline)
    problems = Problems(text_problems)
    reader = Reader(problems)
    config = _read(message, reader, folder or FilePath())
    if problems.messages:
        raise ConfigError(problems.messages, source)
    for note in config.notes:
        _logger.warning("%s%s", f"{source}: " if source else "", note)
    return replace(config, text=standing_alone(message, text, folder or FilePath()), source=source)


def parse_train_config(text: str, source: str = "") -> TrainConfig:
    """Read the text of a `train_config` alone.

    Raises:
        ConfigError: it lists every problem found.
    """
    message, text_problems = parse_text(text, train_pb2.Train)
    problems = Problems(text_problems)
    config = _read_train(message, Reader(problems), ())
    if problems.messages or config is None:
        raise ConfigError(problems.messages, source)
    return config


def _read(message: pipeline_pb2.Pipeline, reader: Reader, folder: FilePath) -> PipelineConfig:
    """Everything that can be read; what is wrong is noted with the reader."""
    values: dict[str, Any] = {name: getattr(message, name) for name in ("train_input_path", "eval_input_path", "model_dir")}
    reader.accepted(message, "the config", ())
    if message.HasField("data_config"):
        values["data"] = read_data(reader, message.data_config, ("data_config", 0))
    if message.HasField("train_config"):
        values["train"] = _read_train(message.train_config, reader, ("train_config", 0))
    if message.HasField("eval_config"):
        values["eval"] = reader.read(message.eval_config, "eval_config", ("eval_config", 0)) or EvalConfig()
    if message.HasField("export_config"):
        values["export"] = reader.read(message.export_config, "export_config", ("export_config", 0)) or ExportConfig()
    if message.HasField("model_config"):
        values["model"] = read_model(reader, message.model_config, ("model_config", 0))
    config = PipelineConfig(**values)
    feature_configs, features = read_features(reader, message, folder, config.data)
    groups = _read_groups(message, reader, features, config.model.wide if config.model is not None else None)
    if config.train is not None:
        texts = constrained_table_problems(config.train.table_constraints, groups, features)
        reader.problems.add_all(("train_config", 0), [f"train_config: table_constraints: {text}" for text in texts])
        reader.problems.add_all(("train_config", 0), [f"train_config: {text}" for text in dynamic_training_problems(config.train, features)])
    if config.model is not None and not groups:
        reader.problems.add(("model_config", 0), Absence("model_config: has no feature_groups; the model needs at least one"))
    notes = [*reader.notes, *(note for part in feature_configs for note in notes_of(part))]
    if groups:
        notes += [f"feature {name!r}: no group has it: it is read, and not used" for name in unused_features(groups, list(features))]
    return replace(config, feature_configs=tuple(feature_configs), feature_groups=tuple(groups), notes=tuple(notes))


def _read_train(message: train_pb2.Train, reader: Reader, path: Path) -> TrainConfig | None:
    config: TrainConfig | None = reader.read(message, "train_config", path)
    return config


def _read_groups(
    message: pipeline_pb2.Pipeline, reader: Reader, features: dict[str, Feature | None], wide: WideTables | None
) -> list[FeatureGroupConfig]:
    in_model: list[tuple[Path, group_pb2.FeatureGroup]] = [
        (("model_config", 0, "feature_groups", place), group) for place, group in enumerate(message.model_config.feature_groups)
    ]
    at_top: list[tuple[Path, group_pb2.FeatureGroup]] = [(("feature_groups", place), group) for place, group in enumerate(message.feature_groups)]
    if in_model and at_top:
        reader.problems.add((), "feature_groups stand both at the top and in model_config; keep one place")
    read: list[FeatureGroupConfig] = []
    places: list[Path] = []
    for path, group in in_model + at_top:
        where = f"feature_groups {group.group_name!r}" if group.group_name else f"feature_groups[{path[-1]}]"
        one = reader.read(group, where, path)
        if one is not None:
            read.append(one)
            places.append(path)
    for path, texts in zip(places, group_problems(read, features, wide), strict=True):
        reader.problems.add_all(path, [text for text in texts if not (isinstance(text, Absence) and path in reader.incomplete)])
    return read
