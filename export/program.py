"""The one cut of a model: lookups stay with the engine, all behind them becomes two programs, one for outputs and one for group tensors.

Each is written in every format that is asked for, out of one module.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

from emberline.errors import ExportError
from emberline.export.formats.aoti import SUFFIX as AOTI_SUFFIX
from emberline.export.formats.aoti import write_aoti
from emberline.export.formats.check import ProgramSource
from emberline.export.formats.exported import export_program
from emberline.export.formats.needs import require_needs
from emberline.export.formats.onnx import SUFFIX as ONNX_SUFFIX
from emberline.export.formats.onnx import write_onnx
from emberline.export.formats.torchscript import SUFFIX as TORCHSCRIPT_SUFFIX
from emberline.export.formats.torchscript import Trace, write_torchscript
from emberline.export.precision import with_precision
from emberline.export.program_options import ProgramOptions
from emberline.manifest import ProgramEntry
from emberline.program_inputs import TILED, gives_groups, program_inputs, program_outputs, tiled_inputs, tiled_streams
from emberline.serving.compatibility import made_here
from emberline.train.models import DenseProgram, GroupsProgram, RecModel

PROGRAMS_DIR = "programs"
Kept = Callable[[str, str], bool]
"""Whether the programs of a role, made of what has this digest, are there already."""


def write_programs(
    model: RecModel,
    root: Path,
    options: ProgramOptions | None = None,
    progress: Callable[[str], None] = lambda line: None,
    kept: Kept = lambda role, digest: False,
    more: Iterable[tuple[str, ProgramSource]] = (),
) -> tuple[ProgramEntry, ...]:
    """Write `programs/dense.*` (role `outputs`) and `programs/groups.*` (role `groups`) below `root`, in each format.

    They take what `program_inputs` lists, for any sizes, and hold no table. Where the options ask for it, there are two more, for tiled requests, in
    `tiled_dense.*` and `tiled_groups.*`, which take what `tiled_inputs` lists.

    Args:
        model: in eval mode.
        root: the artifact's folder.
        options: formats and number type.
        progress: called with one line for each program.
        kept: roles of which it is true are left out.
        more: further programs, with the stems of their files.

    Raises:
        ExportError: the model cannot become a program of a format, is not deterministic in eval mode, or a program answers otherwise.
        MissingDependencyError: a format of a program that is written needs a package that is not installed.
    """
    chosen = options or ProgramOptions()
    entries: list[ProgramEntry] = []
    for stem, source in (*_sources(model, chosen), *more):
        entries += _write(source, root / PROGRAMS_DIR / stem, chosen, model.schema().group_dtype, progress, kept)
    return tuple(entries)


def _sources(model: RecModel, options: ProgramOptions) -> Iterator[tuple[str, ProgramSource]]:
    schema = model.schema()
    for tiled in (False, True) if options.tile else (False,):
        prefix, inputs, streams = (TILED, tiled_inputs(schema), tiled_streams(schema)) if tiled else ("", program_inputs(schema), [])
        if schema.outputs:
            program = with_precision(DenseProgram(model, tiled=tiled).eval(), options.precision)
            yield f"{prefix}dense", ProgramSource(program, inputs, program_outputs(schema, "outputs"), f"{prefix}outputs", streams=streams)
        names = program_outputs(schema, "groups")
        yield f"{prefix}groups", ProgramSource(GroupsProgram(model, tiled=tiled).eval(), inputs, names, f"{prefix}groups", streams=streams)


def _write(
    source: ProgramSource, stem: Path, options: ProgramOptions, group_dtype: str, progress: Callable[[str], None], kept: Kept
) -> list[ProgramEntry]:
    """One program in each format."""
    try:
        trace = Trace.of(source)
    except ExportError:
        if "torchscript" in options.formats:
            raise
        trace = None
    digest = trace.digest() if trace is not None else ""
    if digest and kept(source.role, digest):
        return []
    require_needs(options.formats)
    exported = cache(export_program)
    entries = []
    for format in options.formats:
        bound = options.bound(format, source.role, group_dtype)
        match format:
            case "torchscript":
                assert trace is not None
                entry = write_torchscript(source, trace, stem.with_suffix(TORCHSCRIPT_SUFFIX), bound)
            case "aoti":
                placed = source.on(options.device)
                entry = write_aoti(placed, exported(placed), stem.with_suffix(AOTI_SUFFIX), bound)
            case "onnx":
                entry = write_onnx(source, exported(source), stem.with_suffix(ONNX_SUFFIX), bound)
        progress(f"program {entry.file} ({entry.role})")
        precision = "fp32" if gives_groups(source.role) else options.precision
        entries.append(replace(made_here(entry), source=digest, precision=precision))
    return entries
