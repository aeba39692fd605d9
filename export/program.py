"""The one cut of a model: lookups stay with the engine, all behind them becomes two programs, one for outputs and one for group tensors."""

from pathlib import Path

from emberline.export.formats.torchscript import write_program
from emberline.manifest import ProgramEntry
from emberline.serving.golden import tolerance_of
from emberline.train.models import DenseProgram, GroupsProgram, RecModel

PROGRAMS_DIR = "programs"


def write_programs(model: RecModel, root: Path) -> tuple[ProgramEntry, ...]:
    """Write `programs/dense.ts` (role `outputs`) and `programs/groups.ts` (role `groups`) below `root`.

    Both take pooled [B, P] and dense [B, D], for any B, and hold no table.

    Raises:
        ExportError: the model cannot be traced, is not deterministic in eval mode, or its trace answers otherwise.
    """
    schema = model.schema()
    widths = (schema.pooled_dim, schema.dense_dim)
    entries = []
    for role, stem, program in (("outputs", "dense", DenseProgram(model)), ("groups", "groups", GroupsProgram(model))):
        entries.append(write_program(program, widths, root / PROGRAMS_DIR / f"{stem}.ts", role=role, max_difference=tolerance_of(schema.group_dtype)))
    return tuple(entries)
