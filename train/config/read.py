"""From protobuf messages to frozen dataclasses, driven by their descriptors.

Each field that is set goes into the dataclass field of its name (a oneof: of the oneof's name); what is not set is left to the dataclass's
default. So there is one place for names, the `.proto` files, and one for defaults, the dataclasses.
"""

import dataclasses
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from emberline.schema import GroupKind, Keep, Pooling
from emberline.train.config import data_config, group_configs, model_config, optimizer_configs, schedule_configs, train_config
from emberline.train.config.checks import problems_of
from emberline.train.config.functions import ActivationSpec, InitSpec, ThresholdFilterSpec
from emberline.train.config.planner_config import PlannerConfig, TableConstraintsConfig
from emberline.train.config.problems import Problems
from emberline.train.config.refusals import REFUSED_VALUES, lookup, no_effect
from emberline.train.config.text import Path
from emberline.train.encoders import configs as encoders
from emberline.train.features import configs, family_configs
from emberline.train.features.normalizer import read_normalizer
from emberline.train.features.sentences import Absence

CLASSES: Mapping[str, type[Any]] = {
    "EmbeddingConstraints": configs.EmbeddingConstraints,
    "LfuEviction": configs.LfuPolicy,
    "LruEviction": configs.LruPolicy,
    "DistanceLfuEviction": configs.DistanceLfuPolicy,
    "TtlEviction": configs.TtlPolicy,
    "ZeroCollisionHash": configs.ZchConfig,
    "DynamicEmbInitializer": configs.DynamicEmbInitializerConfig,
    "DynamicEmbFrequencyAdmission": configs.DynamicEmbFrequencyAdmissionConfig,
    "DynamicEmbedding": configs.DynamicEmbConfig,
    "AutoDisEmbedding": configs.AutoDisConfig,
    "MlpEmbedding": configs.MlpEmbeddingConfig,
    "IdFeature": configs.IdFeatureConfig,
    "RawFeature": configs.RawFeatureConfig,
    "ComboFeature": configs.ComboFeatureConfig,
    "LookupFeature": family_configs.LookupFeatureConfig,
    "MatchFeature": family_configs.MatchFeatureConfig,
    "ExprFeature": family_configs.ExprFeatureConfig,
    "OverlapFeature": family_configs.OverlapFeatureConfig,
    "TokenizeFeature": family_configs.TokenizeFeatureConfig,
    "KvDotProductFeature": family_configs.KvDotProductFeatureConfig,
    "CombineFeature": family_configs.CombineFeatureConfig,
    "BoolMaskFeature": family_configs.BoolMaskFeatureConfig,
    "CustomFeature": family_configs.CustomFeatureConfig,
    "FeatureGroup": group_configs.FeatureGroupConfig,
    "SequenceGroup": group_configs.SequenceGroupConfig,
    "DinEncoder": encoders.DinEncoderConfig,
    "SimpleAttentionEncoder": encoders.SimpleAttentionConfig,
    "PoolingEncoder": encoders.PoolingEncoderConfig,
    "SelfAttentionEncoder": encoders.SelfAttentionEncoderConfig,
    "MultiWindowDinEncoder": encoders.MultiWindowDinEncoderConfig,
    "RecurrentEncoder": encoders.RecurrentEncoderConfig,
    "TransformerEncoder": encoders.TransformerEncoderConfig,
    "Field": data_config.FieldConfig,
    "NegativeColumns": data_config.NegativeColumnsConfig,
    "NegativeSampler": data_config.NegativeSamplerConfig,
    "Mlp": model_config.MlpConfig,
    "Dlrm": model_config.DlrmConfig,
    "DeepFm": model_config.DeepFmConfig,
    "WideAndDeep": model_config.WideAndDeepConfig,
    "Tower": model_config.TowerConfig,
    "DinTower": model_config.DinTowerConfig,
    "MultiTowerDin": model_config.MultiTowerDinConfig,
    "Dssm": model_config.DssmConfig,
    "TaskTower": model_config.TaskTowerConfig,
    "Mmoe": model_config.MmoeConfig,
    "BinaryCrossEntropy": model_config.BinaryCrossEntropyConfig,
    "SoftmaxCrossEntropy": model_config.SoftmaxCrossEntropyConfig,
    "L2Loss": model_config.L2LossConfig,
    "Auc": model_config.AucConfig,
    "RecallAtK": model_config.RecallAtKConfig,
    "FusedSgd": optimizer_configs.FusedSgdConfig,
    "FusedAdagrad": optimizer_configs.FusedAdagradConfig,
    "FusedRowWiseAdagrad": optimizer_configs.FusedRowWiseAdagradConfig,
    "FusedAdam": optimizer_configs.FusedAdamConfig,
    "FusedLamb": optimizer_configs.FusedLambConfig,
    "SparseOptimizer.partial_rowwise_adam_optimizer": optimizer_configs.FusedPartialRowWiseAdamConfig,
    "SparseOptimizer.partial_rowwise_lamb_optimizer": optimizer_configs.FusedPartialRowWiseLambConfig,
    "FusedLarsSgd": optimizer_configs.FusedLarsSgdConfig,
    "FusedAdadelta": optimizer_configs.FusedAdadeltaConfig,
    "FusedRmsProp": optimizer_configs.FusedRmsPropConfig,
    "Sgd": optimizer_configs.SgdConfig,
    "Adagrad": optimizer_configs.AdagradConfig,
    "Adam": optimizer_configs.AdamConfig,
    "DenseOptimizer.adamw_optimizer": optimizer_configs.AdamWConfig,
    "PartOptimizer.adamw_optimizer": optimizer_configs.AdamWConfig,
    "Adadelta": optimizer_configs.AdadeltaConfig,
    "RmsProp": optimizer_configs.RmsPropConfig,
    "ConstantLr": schedule_configs.ConstantLrConfig,
    "ExponentialDecayLr": schedule_configs.ExponentialDecayLrConfig,
    "ManualStepLr": schedule_configs.ManualStepLrConfig,
    "CosineAnnealingLr": schedule_configs.CosineAnnealingLrConfig,
    "CosineAnnealingWarmRestartsLr": schedule_configs.CosineAnnealingWarmRestartsLrConfig,
    "SparseOptimizer": optimizer_configs.SparseOptimizerConfig,
    "DenseOptimizer": optimizer_configs.DenseOptimizerConfig,
    "PartOptimizer": optimizer_configs.PartOptimizerConfig,
    "GradScaler": train_config.GradScalerConfig,
    "GradClipping": train_config.GradClippingConfig,
    "DenseEma": train_config.DenseEmaConfig,
    "Planner": PlannerConfig,
    "TableConstraints": TableConstraintsConfig,
    "Train": train_config.TrainConfig,
    "Eval": train_config.EvalConfig,
    "Export": train_config.ExportConfig,
}
"""Message -> its dataclass; `Message.field` goes before the field's message."""

BY_HAND: frozenset[str] = frozenset({"Pipeline", "Data", "Model", "CustomModel", "Argument", "SequenceFeature"})
"""Messages that are not read field by field: `load.py` and the `read_*.py` read them."""

WRAPPERS: frozenset[str] = frozenset({"Feature", "SequenceSubFeature", "SequenceEncoder", "Loss", "Metric"})
"""Messages that are one oneof: what is inside counts."""

BY_PLACE: Mapping[str, Mapping[str, Any]] = {"SequenceEncoder.lstm": {"cell": "lstm"}, "SequenceEncoder.gru": {"cell": "gru"}}
"""`Message.field` -> what the field's place says of its message, by the name of the dataclass's field."""

Convert = Callable[[Any], Any]
_MOST_CHOICES = 12
"""So many fields of a oneof are listed in a message."""


def _choice(kind: type[StrEnum], spelled: Callable[[str], str] = str) -> Convert:
    """One of an enum's values, as they stand, or after `spelled` of the text."""

    def convert(text: str) -> StrEnum:
        if spelled(text) not in set(kind):
            raise ValueError(f"must be {' or '.join(filter(None, kind))}, found {text!r}")
        return kind(spelled(text))

    return convert


def _number_type(text: str) -> str:
    if text.upper() not in ("FP32", "FP16", "BF16"):
        raise ValueError(f"must be FP32, FP16 or BF16, found {text!r}")
    return text.lower()


CONVERT: Mapping[str, Convert] = {
    "init_fn": InitSpec.parse,
    "wide_init_fn": InitSpec.parse,
    "activation": ActivationSpec.parse,
    "threshold_filtering_func": ThresholdFilterSpec.parse,
    "normalizer": read_normalizer,
    "pooling": _choice(Pooling, str.lower),
    "sequence_keep": _choice(Keep, str.lower),
    "group_type": GroupKind,
    "similarity": model_config.Similarity,
    "data_type": str.upper,
    "embedding_output_dtype": _number_type,
    "mixed_precision": _choice(train_config.MixedPrecision),
    "weight_decay_mode": _choice(optimizer_configs.WeightDecayMode),
    "clipping_type": _choice(train_config.ClippingType),
    "exporter_type": _choice(train_config.ExporterType),
}
"""Field name -> what its value becomes; a `ValueError` is noted beside the field's name."""


class Reader:
    """Reads messages, and notes what is wrong with them or has no effect.

    `incomplete` has the places of messages that lost a part by being refused or wrong: checks of the whole would mislead there.
    """

    def __init__(self, problems: Problems) -> None:
        self.problems = problems
        self.notes: list[str] = []
        self.incomplete: set[Path] = set()

    def read(self, message: Message, where: str, path: Path, cls: type[Any] | None = None, by_place: Mapping[str, Any] | None = None) -> Any:
        """The dataclass of a message, or None where something that it must have is missing or wrong.

        Args:
            message: one whose dataclass is in `CLASSES`.
            where: how the user knows it, such as "feature 'x'".
            path: its place in the config.
            cls: the dataclass, where the message's own is not meant.
            by_place: values that the message's place says.
        """
        cls = cls or CLASSES[message.DESCRIPTOR.name]
        values: dict[str, Any] = dict(by_place or {})
        for field, value in self.accepted(message, where, path):
            read = self.value(message, field, value, where, path)
            if read is not None:
                values[_target(field)] = read
        given = {_target(field) for field, _ in message.ListFields()} | values.keys()
        if any(field.message_type is not None and _target(field) not in values for field, _ in message.ListFields()):
            self.incomplete.add(path)
        required = _required(cls)
        self.problems.add_all(path, [Absence(f"{where}: {name} is missing{_choices(message, name)}") for name in required if name not in given])
        if not values.keys() >= set(required):
            return None
        read = cls(**values)
        self.problems.add_all(path, [f"{where}: {text}" for text in problems_of(read)])
        return read

    def accepted(self, message: Message, where: str, path: Path) -> list[tuple[FieldDescriptor, Any]]:
        """The fields that are set, without those that are refused (noted as problems) or have no effect (noted)."""
        kept = []
        name = message.DESCRIPTOR.name
        for field, value in message.ListFields():
            shown = _plain(field, value)
            refusal = lookup(name, field.name)
            reason = no_effect(name, field.name)
            values = REFUSED_VALUES.get(f"{name}.{field.name}", {})
            if refusal is not None and shown not in refusal.unless:
                asked = f" {shown!r}" if refusal.unless and not isinstance(shown, bool) else ""
                self.problems.add(path, f"{where}: {field.name}{asked} is not supported yet{refusal.instead}")
            elif isinstance(shown, str) and shown in values:
                self.problems.add(path, f"{where}: {field.name} {shown} is not supported yet{values[shown]}")
            elif reason:
                self.notes.append(f"{where}: {field.name} has no effect: {reason}")
            elif refusal is None:
                kept.append((field, value))
        return kept

    def value(self, message: Message, field: FieldDescriptor, value: Any, where: str, path: Path) -> Any:
        """One field's value as the dataclass holds it, or None where it is wrong."""
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            return tuple(sorted(value.items(), key=lambda item: (item[1], item[0])))
        if field.message_type is not None and field.is_repeated:
            parts = [self.message(message, field, part, f"{where}: {field.name}", (*path, field.name, place)) for place, part in enumerate(value)]
            return None if None in parts else tuple(parts)
        if field.message_type is not None:
            return self.message(message, field, value, f"{where}: {field.name}", (*path, field.name, 0))
        if field.is_repeated:
            return tuple(value)
        return self.converted(field, _plain(field, value), where, path)

    def message(self, parent: Message, field: FieldDescriptor, value: Message, where: str, path: Path) -> Any:
        """A message inside of another."""
        if value.DESCRIPTOR.name in WRAPPERS:
            return self.wrapped(value, where, path)
        return self.read(value, where, path, CLASSES.get(f"{parent.DESCRIPTOR.name}.{field.name}"))

    def wrapped(self, wrapper: Message, where: str, path: Path) -> Any:
        """What is inside of a wrapper, or None where it is empty or refused."""
        if not wrapper.ListFields():
            self.problems.add(path, Absence(f"{where}: it is empty{_choices(wrapper, wrapper.DESCRIPTOR.oneofs[0].name)}"))
            return None
        for field, value in self.accepted(wrapper, where, path):
            return self.read(value, where, (*path, field.name, 0), by_place=BY_PLACE.get(f"{wrapper.DESCRIPTOR.name}.{field.name}"))
        return None

    def converted(self, field: FieldDescriptor, value: Any, where: str, path: Path) -> Any:
        """A scalar as the dataclass holds it."""
        convert = CONVERT.get(field.name)
        if convert is None:
            return value
        try:
            return convert(value)
        except ValueError as error:
            self.problems.add(path, f"{where}: {field.name}: {error}")
            return None


def _target(field: FieldDescriptor) -> str:
    """The dataclass field that a message's field goes into."""
    return field.containing_oneof.name if field.containing_oneof else field.name


def _required(cls: type[Any]) -> list[str]:
    """The fields that a dataclass has no default for."""
    missing = dataclasses.MISSING
    return [field.name for field in dataclasses.fields(cls) if field.default is missing and field.default_factory is missing]


def _plain(field: FieldDescriptor, value: Any) -> Any:
    """An enum value by its name; everything else as it is."""
    if field.enum_type is not None and not field.is_repeated:
        return field.enum_type.values_by_number[value].name
    return value


def _choices(message: Message, name: str) -> str:
    """For a oneof: the fields that could be set, without those that are refused."""
    oneof = message.DESCRIPTOR.oneofs_by_name.get(name)
    if oneof is None:
        return ""
    known = [field.name for field in oneof.fields if lookup(message.DESCRIPTOR.name, field.name) is None]
    more = f" and {len(known) - _MOST_CHOICES} more" if len(known) > _MOST_CHOICES else ""
    return f"; set one of {', '.join(known[:_MOST_CHOICES])}{more}"
