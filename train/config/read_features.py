"""Reading `feature_configs`: one message a feature, or one for a sequence of several."""

from dataclasses import dataclass, replace
from pathlib import Path as FilePath
from typing import Any

from google.protobuf import text_format
from google.protobuf.message import Message

from emberline.train.config.data_config import DataConfig
from emberline.train.config.protos import feature_pb2, pipeline_pb2
from emberline.train.config.read import Reader
from emberline.train.config.text import Path
from emberline.train.features.configs import HashOrVocabularyConfig
from emberline.train.features.create import try_features
from emberline.train.features.family_configs import TokenizeFeatureConfig
from emberline.train.features.feature import Feature
from emberline.train.features.sentences import Absence
from emberline.train.features.sequence_configs import AloneSequenceConfig, FamilyConfig, FeatureConfig, SequenceFeatureConfig
from emberline.train.features.tokenizers import read_vocab_size
from emberline.train.features.vocabulary import read_vocab_file

_GROUPED, _ALONE_PREFIX = "sequence_feature", "sequence_"


@dataclass(frozen=True)
class _Read:
    """One entry of `feature_configs`, and where it, or each of its parts, stands."""

    config: FeatureConfig
    path: Path
    part_paths: tuple[Path, ...] = ()


def read_features(
    reader: Reader, message: pipeline_pb2.Pipeline, folder: FilePath, data: DataConfig
) -> tuple[list[FeatureConfig], dict[str, Feature | None]]:
    """The features' configs, and features by name: None for those that have problems."""
    read: list[_Read] = []
    by_name: dict[str, Feature | None] = {}
    for place, wrapper in enumerate(message.feature_configs):
        path: Path = ("feature_configs", place)
        by_name.update(dict.fromkeys(filter(None, _feature_names(wrapper))))
        one = _read_feature(reader, wrapper, _label(wrapper, place), path, folder)
        if one is not None:
            read.append(one)
    configs = [one.config for one in read]
    features, problems = try_features(configs, data.neg_fields, data.fg_mode, data.fg_encoded_multival_sep)
    for problem in problems:
        one = read[problem.index]
        path = one.path if problem.part is None else one.part_paths[problem.part]
        if not (isinstance(problem.message, Absence) and path in reader.incomplete):
            reader.problems.add(path, problem.message)
    by_name.update({feature.name: feature for feature in features})
    return configs, by_name


def _read_feature(reader: Reader, wrapper: feature_pb2.Feature, where: str, path: Path, folder: FilePath) -> _Read | None:
    kind = wrapper.WhichOneof("feature")
    if kind == _GROUPED:
        return _read_sequence(reader, wrapper.sequence_feature, where, (*path, _GROUPED, 0), folder)
    one: FamilyConfig | None = reader.wrapped(wrapper, where, path)
    if one is None:
        return None
    one = _with_folder(one, folder)
    config = AloneSequenceConfig(feature=one) if str(kind).startswith(_ALONE_PREFIX) else one
    return _Read(config, (*path, str(kind), 0))


def _read_sequence(reader: Reader, message: feature_pb2.SequenceFeature, where: str, path: Path, folder: FilePath) -> _Read:
    """A sequence of several features: those of its parts that can be read."""
    values: dict[str, Any] = {"sequence_name": ""}
    features: list[FamilyConfig] = []
    part_paths: list[Path] = []
    for field, value in reader.accepted(message, where, path):
        if field.name != "features":
            values[field.name] = reader.value(message, field, value, where, path)
            continue
        for place, part in enumerate(value):
            name = _own_name(part)
            label = f"feature {message.sequence_name + '__' + name!r}" if name else f"{where}: features[{place}]"
            one: FamilyConfig | None = reader.wrapped(part, label, (*path, "features", place))
            if one is None:
                reader.incomplete.add(path)
            else:
                features.append(_with_folder(one, folder))
                part_paths.append((*path, "features", place, str(part.WhichOneof("feature")), 0))
    given = {name: value for name, value in values.items() if value is not None}
    return _Read(SequenceFeatureConfig(**given, features=tuple(features)), path, tuple(part_paths))


def _own_name(wrapper: Message) -> str:
    kind = wrapper.WhichOneof("feature")
    name: str = getattr(wrapper, kind).feature_name if kind else ""
    return name


def _feature_names(wrapper: feature_pb2.Feature) -> list[str]:
    """The names that an entry has in groups: a feature's own, or those of a sequence's features."""
    if wrapper.WhichOneof("feature") != _GROUPED:
        return [_own_name(wrapper)]
    sequence = wrapper.sequence_feature
    return [f"{sequence.sequence_name}__{name}" for part in sequence.features if (name := _own_name(part))]


def _label(wrapper: feature_pb2.Feature, place: int) -> str:
    """What messages call an entry."""
    if wrapper.WhichOneof("feature") == _GROUPED:
        return f"sequence {wrapper.sequence_feature.sequence_name!r}"
    name = _own_name(wrapper)
    return f"feature {name!r}" if name else f"feature_configs[{place}]"


def _with_folder(config: FamilyConfig, folder: FilePath) -> FamilyConfig:
    """With the vocabulary's folder counted from the config's."""
    if isinstance(config, HashOrVocabularyConfig | TokenizeFeatureConfig) and config.vocab_file:
        return replace(config, asset_dir=str(folder / config.asset_dir))
    return config


def standing_alone(message: pipeline_pb2.Pipeline, text: str, folder: FilePath) -> str:
    """The text itself, or, where it names vocabulary files, one with what is in them."""
    alone = pipeline_pb2.Pipeline()
    alone.CopyFrom(message)
    parts: list[Message] = []
    for wrapper in alone.feature_configs:
        kind = wrapper.WhichOneof("feature")
        inner: list[Any] = list(wrapper.sequence_feature.features) if kind == _GROUPED else [wrapper]
        parts += [getattr(one, str(one.WhichOneof("feature"))) for one in inner]
    changed = [_without_file(part, folder) for part in parts]
    return text_format.MessageToString(alone, as_utf8=True) if any(changed) else text


def _without_file(part: Any, folder: FilePath) -> bool:
    """Put what is in a feature's vocabulary file in its place; whether it has one."""
    if not getattr(part, "vocab_file", ""):
        return False
    path = folder / part.asset_dir / part.vocab_file
    if isinstance(part, feature_pb2.TokenizeFeature):
        part.vocab_size = read_vocab_size(path, part.tokenizer_type or TokenizeFeatureConfig.tokenizer_type)
    else:
        part.vocab_dict.update(dict(read_vocab_file(path)))
    part.ClearField("vocab_file")
    part.ClearField("asset_dir")
    return True
