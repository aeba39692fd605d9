"""Training: from a pipeline config and data files to a checkpoint.

The names below are stable. Each is imported when it is first used, so that `import emberline.train` costs nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from emberline.train.config import load_config
    from emberline.train.data import Batch
    from emberline.train.embedding import EmbeddingGroup
    from emberline.train.features import create_features
    from emberline.train.interop import load_torcheasyrec_state
    from emberline.train.sharding.planner import create_planner

__all__ = ["Batch", "EmbeddingGroup", "create_features", "create_planner", "load_config", "load_torcheasyrec_state"]

_HOMES = {
    "Batch": "emberline.train.data",
    "EmbeddingGroup": "emberline.train.embedding",
    "create_features": "emberline.train.features",
    "create_planner": "emberline.train.sharding.planner",
    "load_config": "emberline.train.config",
    "load_torcheasyrec_state": "emberline.train.interop",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
