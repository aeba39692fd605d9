"""The model on top of the embedding system, its losses and metrics."""

from dataclasses import dataclass, field
from typing import Any

from emberline.train.config.functions import ActivationSpec, InitSpec

ArgumentValue = int | float | bool | str | tuple[int, ...] | tuple[float, ...] | tuple[bool, ...] | tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class MlpConfig:
    """Linear layers, each followed by normalisation, activation and dropout.

    Args:
        hidden_units: width of each layer; at least one.
        dropout_ratio: empty (none), one for all layers, or one a layer; each in [0, 1).
        activation: of each layer.
        use_bn: batch normalisation; the linear layers then have no bias.
        use_ln: layer normalisation; not together with `use_bn`.
        bias: whether linear layers have a bias.
    """

    hidden_units: tuple[int, ...]
    dropout_ratio: tuple[float, ...] = ()
    activation: ActivationSpec = field(default_factory=lambda: ActivationSpec(name="nn.ReLU"))
    use_bn: bool = False
    use_ln: bool = False
    bias: bool = True

    @property
    def dropouts(self) -> tuple[float, ...]:
        """One ratio a layer."""
        if len(self.dropout_ratio) == len(self.hidden_units):
            return self.dropout_ratio
        return (self.dropout_ratio or (0.0,)) * len(self.hidden_units)


@dataclass(frozen=True, kw_only=True)
class DlrmConfig:
    """DLRM (Naumov et al. 2019): groups `dense` and `sparse`, pairwise dot products between them.

    Args:
        dense_mlp: lifts the numbers to the width of the embeddings.
        final: from the interactions to the logit.
        arch_with_sparse: whether the embeddings themselves also go into `final`.
    """

    dense_mlp: MlpConfig
    final: MlpConfig
    arch_with_sparse: bool = True


@dataclass(frozen=True, kw_only=True)
class DeepFmConfig:
    """DeepFM (Guo et al. 2017): groups `wide` and `deep`, and optionally `fm`.

    Args:
        deep: over the group `deep`.
        final: over wide, FM and deep parts side by side; None adds them up.
        wide_embedding_dim: width of the tables of WIDE groups.
        wide_init_fn: how those tables start; None: as the features say.
    """

    deep: MlpConfig
    final: MlpConfig | None = None
    wide_embedding_dim: int = 4
    wide_init_fn: InitSpec | None = None


@dataclass(frozen=True, kw_only=True)
class CustomModelConfig:
    """A user's own module.

    Args:
        class_path: `package.module.Class`; the class is called with the embedding group and `kwargs`.
        kwargs: pairs of name and value, in the config's order.
    """

    class_path: str
    kwargs: tuple[tuple[str, ArgumentValue], ...] = ()


@dataclass(frozen=True, kw_only=True)
class BinaryCrossEntropyConfig:
    """Log loss of one logit a row against labels in {0, 1}."""


@dataclass(frozen=True, kw_only=True)
class SoftmaxCrossEntropyConfig:
    """Cross entropy of `num_class` logits a row against class numbers."""

    label_smoothing: float = 0.0


@dataclass(frozen=True, kw_only=True)
class L2LossConfig:
    """Squared error of one output a row."""


LossConfig = BinaryCrossEntropyConfig | SoftmaxCrossEntropyConfig | L2LossConfig


@dataclass(frozen=True, kw_only=True)
class AucConfig:
    """Area under the ROC curve."""


MetricConfig = AucConfig
ModelParts = DlrmConfig | DeepFmConfig | CustomModelConfig

_NAMES: dict[type[Any], str] = {DlrmConfig: "dlrm", DeepFmConfig: "deepfm", CustomModelConfig: "custom"}


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The model on top of the embedding system.

    Args:
        model: its own settings.
        num_class: classes; 1 is one logit a row.
        losses: added up.
        metrics: computed on the evaluation set.
    """

    model: ModelParts
    num_class: int = 1
    losses: tuple[LossConfig, ...] = (BinaryCrossEntropyConfig(),)
    metrics: tuple[MetricConfig, ...] = (AucConfig(),)

    @property
    def name(self) -> str:
        """`dlrm`, `deepfm` or `custom`."""
        return _NAMES[type(self.model)]

    @property
    def class_path(self) -> str:
        """The user's class, or empty for a built-in model."""
        return self.model.class_path if isinstance(self.model, CustomModelConfig) else ""

    @property
    def kwargs(self) -> dict[str, ArgumentValue]:
        """Arguments of the user's class; empty for a built-in model."""
        return dict(self.model.kwargs) if isinstance(self.model, CustomModelConfig) else {}
