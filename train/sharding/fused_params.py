"""What TorchRec tells a fused kernel about its optimiser, as ours understands it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_training import WeightDecayMode
from torchrec.distributed.embedding_types import GroupedEmbeddingConfig
from torchrec.distributed.types import BoundsCheckMode

from emberline.errors import ConfigError
from emberline.train.kernels import (
    ROW_OPTIMIZER,
    AdaDelta,
    Adagrad,
    Adam,
    Lamb,
    LarsSgd,
    PartialRowWiseAdam,
    PartialRowWiseLamb,
    RmsProp,
    RowOptimizer,
    RowWiseAdagrad,
    Sgd,
    WeightDecay,
)

_OPTIMIZERS: Mapping[EmbOptimType | type[RowOptimizer], Callable[..., RowOptimizer]] = {
    EmbOptimType.SGD: Sgd,
    EmbOptimType.EXACT_SGD: Sgd,
    EmbOptimType.EXACT_ADAGRAD: Adagrad,
    EmbOptimType.EXACT_ROWWISE_ADAGRAD: RowWiseAdagrad,
    EmbOptimType.ADAM: Adam,
    EmbOptimType.PARTIAL_ROWWISE_ADAM: PartialRowWiseAdam,
    EmbOptimType.LAMB: Lamb,
    EmbOptimType.PARTIAL_ROWWISE_LAMB: PartialRowWiseLamb,
    EmbOptimType.LARS_SGD: LarsSgd,
    AdaDelta: AdaDelta,  # fbgemm has no names for these
    RmsProp: RmsProp,
}
_DECAYS = {WeightDecayMode.NONE: WeightDecay.NONE, WeightDecayMode.L2: WeightDecay.L2, WeightDecayMode.DECOUPLE: WeightDecay.DECOUPLE}
_OTHERS = frozenset({"optimizer", "learning_rate", "gradient_clipping", "max_gradient", "stochastic_rounding", "output_dtype"})
_ABOUT_CACHES = frozenset(
    {
        "cache_algorithm",
        "cache_load_factor",
        "cache_precision",
        "cache_reserved_memory",
        "cache_sets",
        "enforce_hbm",
        "multipass_prefetch_config",
        "prefetch_pipeline",
    }
)
"""They say how a GPU keeps rows of host memory; here all rows are in host memory."""
_MEANT_AS_IT_IS: Mapping[str, tuple[Any, ...]] = {
    "bounds_check_mode": tuple(BoundsCheckMode),  # ids outside a table are always refused
    "enable_raw_embedding_streaming": (False,),
    "embedding_table_index_type": (torch.int32, torch.int64),
    "embedding_table_offset_type": (torch.int32, torch.int64),
}
"""Whatever of these is asked for is what happens anyway."""


@dataclass(frozen=True)
class FusedParams:
    """How the tables of one kernel learn.

    Args:
        optimizer: of all of them.
        max_gradient: bound of a gradient's numbers; None for none.
        stochastic_rounding: of weights that are not float32.
        output_dtype: of looked-up vectors.
    """

    optimizer: RowOptimizer
    max_gradient: float | None
    stochastic_rounding: bool
    output_dtype: torch.dtype

    @classmethod
    def of(cls, config: GroupedEmbeddingConfig) -> "FusedParams":
        """Read TorchRec's settings; what they leave out is as in fbgemm.

        Raises:
            ConfigError: an optimiser, or a setting of it, that has no meaning here; names the tables.
        """
        params: dict[str, Any] = dict(config.fused_params or {})
        names = ", ".join(dict.fromkeys(table.name for table in config.embedding_tables))
        kind = params.pop(ROW_OPTIMIZER, params.get("optimizer", EmbOptimType.EXACT_SGD))
        if kind not in _OPTIMIZERS:
            known = ", ".join(sorted(str(optimizer) for optimizer in _OPTIMIZERS if isinstance(optimizer, EmbOptimType)))
            raise ConfigError(f"tables {names}: the optimiser {kind} is not known on a CPU; those known are {known}")
        build = _OPTIMIZERS[kind]
        settings = _settings(build)
        strange = sorted(name for name, value in params.items() if name not in settings and not _is_harmless(name, value))
        if strange:
            raise ConfigError(f"tables {names}: {kind} has no {', '.join(strange)} on a CPU; leave it out")
        arguments = {name: value for name, value in params.items() if name in settings}
        if "weight_decay_mode" in arguments:
            arguments["weight_decay_mode"] = _decay(arguments["weight_decay_mode"], names)
        optimizer = build(lr=float(params.get("learning_rate", 0.01)), **arguments)
        bound = float(params.get("max_gradient", 1.0)) if params.get("gradient_clipping", False) else None
        output: SparseType = params.get("output_dtype", SparseType.FP32)
        return cls(optimizer, bound, bool(params.get("stochastic_rounding", True)), output.as_dtype())


def _settings(build: Any) -> set[str]:
    """What may be said of an optimiser beside its rate, as its dataclass has it."""
    return {field.name for field in fields(build) if field.init and field.name != "lr"}


def _is_harmless(name: str, value: Any) -> bool:
    if name in _OTHERS or name in _ABOUT_CACHES:
        return True
    if name in _MEANT_AS_IT_IS:
        return value in _MEANT_AS_IT_IS[name]
    return name in ("weight_decay", "weight_decay_mode") and (value == 0 or value is WeightDecayMode.NONE)


def _decay(mode: WeightDecayMode, names: str) -> WeightDecay:
    if mode not in _DECAYS:
        raise ConfigError(f"tables {names}: weight decay {mode.name} is not known on a CPU; those known are NONE, L2 and DECOUPLE")
    return _DECAYS[mode]
