"""The golden sample: a request and the trained model's answers, stored in the artifact so that every engine checks itself against it."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from emberline.serving.files import write_tensors
from emberline.serving.golden import REQUEST_PARTS
from emberline.serving.request import PackedRequest

GOLDEN_NAME = "golden.safetensors"


def write_golden(root: Path, request: PackedRequest, outputs: Mapping[str, Tensor], groups: Mapping[str, Tensor]) -> None:
    """Write `root/golden.safetensors`, over one that is there.

    Args:
        root: the artifact's folder.
        request: the sample.
        outputs: the trained model's outputs for it, by name.
        groups: the trained model's group tensors for it, by name.
    """
    parts = {name: getattr(request, name) for name in REQUEST_PARTS}
    tensors = {name: torch.from_numpy(part) for name, part in parts.items() if part is not None}
    # An empty array has no stride, which the writer asks for.
    tensors = {name: tensor if tensor.numel() else torch.empty(0, dtype=tensor.dtype) for name, tensor in tensors.items()}
    tensors |= {f"output.{name}": answer for name, answer in outputs.items()}
    tensors |= {f"group.{name}": answer for name, answer in groups.items()}
    write_tensors(root / GOLDEN_NAME, tensors)
