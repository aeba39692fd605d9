"""Config: protobuf text, read once at the edge into frozen dataclasses; nothing behind the edge sees a proto.

`load_config` reads a file and reports everything wrong with it at once. `refusals` is the one list of what a config can say but this
version can't do. `functions` holds the named functions that a config may use.
"""

from emberline.train.config.data_config import DataConfig, FgMode, FieldConfig, FileFormat
from emberline.train.config.functions import ActivationSpec, InitSpec, ThresholdFilterSpec
from emberline.train.config.group_configs import FeatureGroupConfig
from emberline.train.config.load import load_config, parse_config, parse_train_config
from emberline.train.config.model_config import (
    AucConfig,
    BinaryCrossEntropyConfig,
    CustomModelConfig,
    DeepFmConfig,
    DlrmConfig,
    L2LossConfig,
    MlpConfig,
    ModelConfig,
    SoftmaxCrossEntropyConfig,
)
from emberline.train.config.optimizer_configs import (
    AdadeltaConfig,
    AdagradConfig,
    AdamConfig,
    AdamWConfig,
    DenseOptimizerConfig,
    FusedAdadeltaConfig,
    FusedAdagradConfig,
    FusedAdamConfig,
    FusedLambConfig,
    FusedLarsSgdConfig,
    FusedPartialRowWiseAdamConfig,
    FusedPartialRowWiseLambConfig,
    FusedRmsPropConfig,
    FusedRowWiseAdagradConfig,
    FusedSgdConfig,
    PartOptimizerConfig,
    RmsPropConfig,
    SgdConfig,
    SparseOptimizerConfig,
)
from emberline.train.config.pipeline import PipelineConfig
from emberline.train.config.schedule_configs import (
    ConstantLrConfig,
    CosineAnnealingLrConfig,
    CosineAnnealingWarmRestartsLrConfig,
    ExponentialDecayLrConfig,
    ManualStepLrConfig,
)
from emberline.train.config.train_config import DenseEmaConfig, EvalConfig, ExportConfig, GradClippingConfig, GradScalerConfig, TrainConfig

__all__ = [
    "ActivationSpec",
    "AdadeltaConfig",
    "AdagradConfig",
    "AdamConfig",
    "AdamWConfig",
    "AucConfig",
    "BinaryCrossEntropyConfig",
    "ConstantLrConfig",
    "CosineAnnealingLrConfig",
    "CosineAnnealingWarmRestartsLrConfig",
    "CustomModelConfig",
    "DataConfig",
    "DeepFmConfig",
    "DenseEmaConfig",
    "DenseOptimizerConfig",
    "DlrmConfig",
    "EvalConfig",
    "ExponentialDecayLrConfig",
    "ExportConfig",
    "FeatureGroupConfig",
    "FgMode",
    "FieldConfig",
    "FileFormat",
    "FusedAdadeltaConfig",
    "FusedAdagradConfig",
    "FusedAdamConfig",
    "FusedLambConfig",
    "FusedLarsSgdConfig",
    "FusedPartialRowWiseAdamConfig",
    "FusedPartialRowWiseLambConfig",
    "FusedRmsPropConfig",
    "FusedRowWiseAdagradConfig",
    "FusedSgdConfig",
    "GradClippingConfig",
    "GradScalerConfig",
    "InitSpec",
    "L2LossConfig",
    "ManualStepLrConfig",
    "MlpConfig",
    "ModelConfig",
    "PartOptimizerConfig",
    "PipelineConfig",
    "RmsPropConfig",
    "SgdConfig",
    "SoftmaxCrossEntropyConfig",
    "SparseOptimizerConfig",
    "ThresholdFilterSpec",
    "TrainConfig",
    "load_config",
    "parse_config",
    "parse_train_config",
]
