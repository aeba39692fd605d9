"""The golden sample: a request and its answers in every artifact, replayed before an engine is ready."""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from emberline.errors import ArtifactError, ServingError
from emberline.program_inputs import TILED
from emberline.serving.program import PROGRAM_FAILURES
from emberline.serving.request import PackedRequest

if TYPE_CHECKING:
    from emberline.serving.engine import Engine

GOLDEN_TOLERANCE = 1e-6
"""Largest difference from a golden answer, absolute for answers below 1 and relative above."""

_UNITS = {"fp16": torch.finfo(torch.float16).eps, "bf16": torch.finfo(torch.bfloat16).eps}


def tolerance_of(group_dtype: str) -> float:
    """Largest difference of answers behind group tensors of a type, absolute below 1 and relative above.

    What differs by a rounding of float32 may fall on two neighbours of a half type.
    """
    return _UNITS.get(group_dtype, GOLDEN_TOLERANCE)


REPLAYS = 3
"""TorchScript watches the first call of a program and compiles on the second: the third is what requests will get, and none of them waits."""

REQUEST_PARTS = tuple(field.name for field in fields(PackedRequest))
"""What a request may have, by the names of its arrays."""


def check_golden(engine: "Engine", *, replays: int = REPLAYS) -> None:
    """Ask the engine for the sample's answers and compare; where there is a tiled sample too, for those of both.

    Args:
        engine: it.
        replays: how often to ask: once is enough where all programs answered before.

    Raises:
        ArtifactError: an answer is missing in the sample, or differs; the message names the output or group.
    """
    found = engine.artifact.golden()
    path = engine.artifact.golden_path
    where = f"{path.parent}: {path.name}"
    tiled = {name.removeprefix(TILED): tensor for name, tensor in found.items() if name.startswith(TILED)}
    _replay(engine, {name: tensor for name, tensor in found.items() if not name.startswith(TILED)}, where, replays)
    if tiled:
        _replay(engine, tiled, f"{where}, the tiled request", replays, TILED)


def _replay(engine: "Engine", sample: Mapping[str, Tensor], where: str, replays: int, prefix: str = "") -> None:
    """Ask for the answers of one sample and compare them.

    Args:
        engine: answers.
        sample: request and answers.
        where: the sample's file, for messages.
        replays: how often.
        prefix: of the roles of the programs that answer.
    """
    request = PackedRequest(**{name: sample[name].numpy() for name in REQUEST_PARTS if name in sample})
    for _ in range(replays):
        try:
            checked = engine.check(request)
            found = {"output." + name: answer for name, answer in engine.predict(checked).items()}
            found |= {"group." + name: answer for name, answer in engine.lookup(checked).items()}
        except (ServingError, *PROGRAM_FAILURES) as error:
            raise ArtifactError(f"{where}: the sample request cannot be answered here: {error}") from error
        scale = row_scale([sample[name] for name in sample if name.startswith("group.")], checked.num_rows)
        for name, answer in found.items():
            if name not in sample:
                raise ArtifactError(f"{where}: there is no answer {name!r} to compare with")
            is_output = name.startswith("output.")
            bound = engine.bound(prefix + ("outputs" if is_output else "groups"))
            if problem := difference(answer.cpu(), sample[name], bound, scale if is_output else None):
                raise ArtifactError(f"{where}: {name!r} is not what it was at export: {problem}")


def row_scale(groups: Iterable[Tensor], num_rows: int) -> Tensor:
    """The size of the numbers that each row's outputs are reckoned from: float32 [B], the largest of its group tensors, at least 1.

    An output is a sum of such numbers, which may be far larger than the sum itself, and each is right to a share of its own size only.

    Args:
        groups: each [B, ...]; others, such as steps without padding, are passed over.
        num_rows: B.
    """
    found = torch.ones(num_rows)
    for tensor in groups:
        if tensor.shape[:1] == (num_rows,) and tensor.numel() and tensor.is_floating_point():
            sizes = tensor.abs().nan_to_num(nan=0.0, posinf=0.0)  # what is no number excuses no difference
            found = torch.maximum(found, sizes.reshape(num_rows, -1).amax(dim=1).cpu())
    return found


def allowed(want: Tensor, bound: float, scale: Tensor | None = None) -> Tensor:
    """How far each number of an answer may be from `want`: `bound` of the larger of 1, the number itself, and its row's scale [B] if given."""
    sizes = want.abs().clamp(min=1)
    if scale is not None:
        sizes = torch.maximum(sizes, scale.to(want.device).reshape(-1, *[1] * (want.dim() - 1)))
    return bound * sizes


def difference(found: Tensor, want: Tensor, tolerance: float = GOLDEN_TOLERANCE, scale: Tensor | None = None) -> str:
    """How two answers differ, in words; empty where they agree as `allowed` says. A NaN never agrees with anything."""
    if found.shape != want.shape or found.dtype != want.dtype:
        return f"found {found.dtype} {list(found.shape)}, expected {want.dtype} {list(want.shape)}"
    gap = (found.double() - want.double()).abs()
    agree = (found == want) | (want.isfinite() & (gap <= allowed(want.double(), tolerance, scale)))
    if bool(agree.all()):
        return ""
    place = int(torch.argmin(agree.reshape(-1).int()))
    pair = f"number {place} is {found.reshape(-1)[place]:.9g}, expected {want.reshape(-1)[place]:.9g}"
    return f"{int((~agree).sum())} of {agree.numel()} numbers differ; {pair}"
