"""Which programs an artifact gets, and how far their answers may be from the trained model's."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import torch

from emberline.errors import ExportError
from emberline.manifest import ProgramEntry
from emberline.program_inputs import TILED, gives_groups
from emberline.schema import ModelSchema
from emberline.serving.golden import tolerance_of
from emberline.serving.program import FORMATS
from emberline.serving.request_tile import tile_refusal

PRECISIONS = ("fp32", "bf16", "fp16")
DEVICES = ("cpu", "cuda")

# How far answers may be from the trained model's, absolute below 1 and relative above. TorchScript runs the operators that the model runs. The others
# add in another order and fuse: a few units of float32 in the last place, times the length of their sums.
_FORMAT_BOUNDS = {"torchscript": 1e-6, "aoti": 1e-5, "onnx": 1e-5}
# Matrices with a row for each user, and not for each row, are multiplied in another order.
_TILED_BOUND = 1e-5
# Eight units in the last place of the type that products are rounded to: each layer adds about one.
_PRECISION_BOUNDS = {"fp32": 0.0, "bf16": 2**-5, "fp16": 2**-8}


@dataclass(frozen=True, kw_only=True)
class ProgramOptions:
    """Which programs an artifact gets.

    Args:
        formats: of each program, in the order of `FORMATS`.
        precision: number type of the matrix products of the programs that give the model's outputs.
        full: also the whole model over rows of tables, with the tables inside.
        device: where compiled programs run, `cpu` or `cuda`.
        tile: also programs for tiled requests.
    """

    formats: tuple[str, ...] = ("torchscript",)
    precision: str = "fp32"
    full: bool = False
    device: str = "cpu"
    tile: bool = False

    @classmethod
    def of(cls, formats: Sequence[str] | str, *, precision: str = "fp32", full: bool = False, device: str = "cpu", tile: bool = False) -> Self:
        """The options that a user asks for.

        Args:
            formats: one or several, also several in one text, between commas.
            precision: as `PRECISIONS`.
            full: as above.
            device: as `DEVICES`.
            tile: as above.

        Raises:
            ExportError: one is unknown, there is no format, one does not go with another, or the device is not there.
        """
        texts = [formats] if isinstance(formats, str) else list(formats)
        asked = [name.strip() for text in texts for name in text.split(",")]
        for what, values, known in (("format", asked, FORMATS), ("precision", [precision], PRECISIONS), ("device", [device], DEVICES)):
            for value in values:
                if value not in known:
                    raise ExportError(f"unknown {what} {value!r}; known: {', '.join(known)}")
        if not asked:
            raise ExportError(f"no format is given; known: {', '.join(FORMATS)}")
        if "onnx" in asked and precision != "fp32":
            raise ExportError(f"precision {precision!r} cannot be had with format 'onnx': onnxruntime has no products of that type on a CPU")
        if device != "cpu" and "aoti" not in asked:
            raise ExportError(f"device {device!r} is what format 'aoti' compiles for, and {', '.join(asked)} would not use it")
        if device == "cuda" and not torch.cuda.is_available():
            raise ExportError(f"device 'cuda' is not there: torch {torch.__version__} sees no CUDA device")
        return cls(formats=tuple(name for name in FORMATS if name in asked), precision=precision, full=full, device=device, tile=tile)

    @classmethod
    def as_in(cls, programs: Iterable[ProgramEntry]) -> Self:
        """The options that made the programs of an artifact."""
        found = list(programs)
        there = {program.format for program in found}
        return cls(
            formats=tuple(name for name in FORMATS if name in there),
            precision=next((program.precision for program in found if program.role == "outputs"), "fp32"),
            full=any(program.role == "full" for program in found),
            device=next((program.device for program in found if program.format == "aoti"), "cpu"),
            tile=any(program.role.startswith(TILED) for program in found),
        )

    def require_sides(self, schema: ModelSchema) -> None:
        """Refuse programs for tiled requests of a model that takes none.

        Raises:
            ExportError: a feature has no side, or none is the user's.
        """
        if self.tile and (refusal := tile_refusal(schema)) is not None:
            raise ExportError(f"--tile: {refusal}; write expressions as user:column or item:column")

    def device_of(self, format: str) -> str:
        """Where the programs of a format run when they are checked."""
        return self.device if format == "aoti" else "cpu"

    def bound(self, format: str, role: str, group_dtype: str) -> float:
        """How far the answers of a program may be from the trained model's, absolute below 1 and relative above."""
        precision = 0.0 if gives_groups(role) else _PRECISION_BOUNDS[self.precision]
        tiled = _TILED_BOUND if role.startswith(TILED) else 0.0
        return max(_FORMAT_BOUNDS[format], precision, tiled, tolerance_of(group_dtype))
