"""Serving: from a request to its answer, with torch, numpy and safetensors alone.

The request path is `request` (validate) -> `batching` (merge) -> `remap` (raw ids to rows) -> `lookup` -> `program`; `engine` drives it.
The embedded server and Triton call the same engine; `Client` asks either of them.
"""

from typing import TYPE_CHECKING, Any

from emberline.serving.artifact import Artifact
from emberline.serving.engine import Engine
from emberline.serving.request import PackedRequest

if TYPE_CHECKING:
    from emberline.serving.client import Client

__all__ = ["Artifact", "Client", "Engine", "PackedRequest"]


def __getattr__(name: str) -> Any:
    """`Client` needs tritonclient, which a process that only serves does not have: it is imported when first asked for."""
    if name == "Client":
        from emberline.serving.client import Client

        return Client
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
