"""The model on top of the embedding system, its losses and metrics."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from emberline.train.config.functions import ActivationSpec, InitSpec
from emberline.train.config.table_reads import WideTables

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
class WideAndDeepConfig:
    """Wide & Deep (Cheng et al. 2016): groups `wide` and `deep`.

    Args:
        deep: over the group `deep`.
        final: over wide and deep parts side by side; None adds them up.
        wide_embedding_dim: width of the tables of WIDE groups.
        wide_init_fn: how those tables start; None: as the features say.
    """

    deep: MlpConfig
    final: MlpConfig | None = None
    wide_embedding_dim: int = 4
    wide_init_fn: InitSpec | None = None


@dataclass(frozen=True, kw_only=True)
class TowerConfig:
    """An MLP over one group.

    Args:
        input: the group.
        mlp: over all of it.
    """

    input: str
    mlp: MlpConfig


@dataclass(frozen=True, kw_only=True)
class DinTowerConfig:
    """Attention of a SEQUENCE group's query to its sequence.

    Args:
        input: the group.
        attn_mlp: over query and step, before the score.
    """

    input: str
    attn_mlp: MlpConfig


@dataclass(frozen=True, kw_only=True)
class MultiTowerDinConfig:
    """Towers over groups side by side, those over sequences as in DIN (Zhou et al. 2018).

    Args:
        towers: over DEEP and WIDE groups.
        din_towers: over SEQUENCE groups.
        final: from all towers to the logit.
    """

    towers: tuple[TowerConfig, ...] = ()
    din_towers: tuple[DinTowerConfig, ...] = ()
    final: MlpConfig


class Similarity(StrEnum):
    """How two vectors are compared: by their inner product, or by that of the vectors at length 1."""

    INNER_PRODUCT = "INNER_PRODUCT"
    COSINE = "COSINE"


@dataclass(frozen=True, kw_only=True)
class DssmConfig:
    """Two towers whose outputs are compared (Huang et al. 2013).

    Args:
        user_tower: over the user's group.
        item_tower: over the item's group.
        output_dim: width of what each tower says.
        similarity: how the two are compared.
        temperature: divides the similarity.
        in_batch_negative: whether the items of a batch's other rows are negatives of each row.
    """

    user_tower: TowerConfig
    item_tower: TowerConfig
    output_dim: int
    similarity: Similarity = Similarity.INNER_PRODUCT
    temperature: float = 1.0
    in_batch_negative: bool = False


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


@dataclass(frozen=True, kw_only=True)
class RecallAtKConfig:
    """The share of true items that are among the `top_k` most similar candidates."""

    top_k: int = 5


MetricConfig = AucConfig | RecallAtKConfig


@dataclass(frozen=True, kw_only=True)
class TaskTowerConfig:
    """One task of several.

    Args:
        tower_name: ends the names of its outputs.
        label_name: the label's column.
        losses: added up.
        metrics: computed on the evaluation set.
        num_class: classes; 1 is one logit a row.
        mlp: before the logit; None: the mixture of experts is taken as it is.
        weight: factor of its loss.
    """

    tower_name: str
    label_name: str
    losses: tuple[LossConfig, ...] = (BinaryCrossEntropyConfig(),)
    metrics: tuple[MetricConfig, ...] = (AucConfig(),)
    num_class: int = 1
    mlp: MlpConfig | None = None
    weight: float = 1.0


@dataclass(frozen=True, kw_only=True)
class MmoeConfig:
    """MMoE (Ma et al. 2018): experts shared by tasks, each with a gate of its own; one group.

    Args:
        expert_mlp: each expert.
        num_expert: experts.
        task_towers: the tasks.
        gate_mlp: hidden layers of each gate; None: the gates are linear.
    """

    expert_mlp: MlpConfig
    num_expert: int
    task_towers: tuple[TaskTowerConfig, ...]
    gate_mlp: MlpConfig | None = None


ModelParts = DlrmConfig | DeepFmConfig | WideAndDeepConfig | MultiTowerDinConfig | DssmConfig | MmoeConfig | CustomModelConfig

_NAMES: dict[type[Any], str] = {
    DlrmConfig: "dlrm",
    DeepFmConfig: "deepfm",
    WideAndDeepConfig: "wide_and_deep",
    MultiTowerDinConfig: "multi_tower_din",
    DssmConfig: "dssm",
    MmoeConfig: "mmoe",
    CustomModelConfig: "custom",
}
MODEL_FIELDS = (*(name for name in _NAMES.values() if name != "custom"), "custom_model")
"""The fields of `model_config` that name a model."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The model on top of the embedding system.

    Args:
        model: its own settings.
        num_class: classes; 1 is one logit a row.
        losses: added up; models of several tasks have those of each task instead.
        metrics: computed on the evaluation set; likewise.
        embedding_output_dtype: fp32, fp16 or bf16: what the tensors of feature groups are rounded to.
    """

    model: ModelParts
    num_class: int = 1
    losses: tuple[LossConfig, ...] = (BinaryCrossEntropyConfig(),)
    metrics: tuple[MetricConfig, ...] = (AucConfig(),)
    embedding_output_dtype: str = "fp32"

    @property
    def name(self) -> str:
        """`dlrm`, `deepfm`, `wide_and_deep`, `multi_tower_din`, `dssm`, `mmoe` or `custom`."""
        return _NAMES[type(self.model)]

    @property
    def wide(self) -> WideTables:
        """What the tables of WIDE groups have in common."""
        if isinstance(self.model, DeepFmConfig | WideAndDeepConfig):
            return WideTables(dim=self.model.wide_embedding_dim, init=self.model.wide_init_fn)
        return WideTables()

    @property
    def class_path(self) -> str:
        """The user's class, or empty for a built-in model."""
        return self.model.class_path if isinstance(self.model, CustomModelConfig) else ""

    @property
    def kwargs(self) -> dict[str, ArgumentValue]:
        """Arguments of the user's class; empty for a built-in model."""
        return dict(self.model.kwargs) if isinstance(self.model, CustomModelConfig) else {}
