"""The whole of a config, as the code behind the edge sees it."""

from dataclasses import dataclass, field

from emberline.errors import ConfigError
from emberline.train.config.data_config import DataConfig
from emberline.train.config.group_configs import FeatureGroupConfig
from emberline.train.config.model_config import MODEL_FIELDS, ModelConfig
from emberline.train.config.train_config import EvalConfig, ExportConfig, TrainConfig
from emberline.train.features.sequence_configs import FeatureConfig


@dataclass(frozen=True, kw_only=True)
class PipelineConfig:
    """The whole of a config.

    Args:
        train_input_path: training files: a path, a glob, a folder, or several with commas between them.
        eval_input_path: evaluation files, written alike; empty: none.
        model_dir: where a run writes; the command line's `--output` goes first.
        data: where rows come from and how they are cut into batches.
        feature_configs: the features, in the config's order.
        feature_groups: the model's input tensors.
        model: the model, or None where the config has only features and groups.
        train: the run, or None likewise.
        eval: how to evaluate.
        export: what to export.
        text: the config as text that stands alone: as it was written, with vocabulary files put in where it named any.
        source: the file that it came from; empty: none.
        notes: what the config says that has no effect here, one sentence each.
    """

    train_input_path: str = ""
    eval_input_path: str = ""
    model_dir: str = ""
    data: DataConfig = field(default_factory=DataConfig)
    feature_configs: tuple[FeatureConfig, ...] = ()
    feature_groups: tuple[FeatureGroupConfig, ...] = ()
    model: ModelConfig | None = None
    train: TrainConfig | None = None
    eval: EvalConfig = field(default_factory=EvalConfig)
    export: ExportConfig = field(default_factory=ExportConfig)
    text: str = ""
    source: str = ""
    notes: tuple[str, ...] = ()

    def need_train(self) -> TrainConfig:
        """The run's settings.

        Raises:
            ConfigError: there is no `train_config`.
        """
        if self.train is None:
            raise ConfigError("train_config is missing: training needs one with a sparse_optimizer and a dense_optimizer", self.source)
        return self.train

    @property
    def uses_dense_ema(self) -> bool:
        """Whether the model is evaluated and exported with the moving averages of its dense parameters."""
        return self.train is not None and self.train.ema is not None and self.export.use_dense_ema is not False

    def need_model(self) -> ModelConfig:
        """The model's settings.

        Raises:
            ConfigError: `model_config` names no model.
        """
        if self.model is None:
            raise ConfigError(f"model_config names no model: put one of {', '.join(MODEL_FIELDS)} into it", self.source)
        return self.model
