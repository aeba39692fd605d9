"""The commands `export`, `inspect`, `explain`, `verify` and `demo`."""

import argparse
import json
import logging
import signal
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import FrameType
from typing import NoReturn

from emberline.errors import ConfigError, ExportError
from emberline.schema import UnknownIds
from emberline.storage import is_url, to_place

TRITON = "triton-"
"""What options of `--triton` begin with."""
_BEFORE = 0
"""`--rollback` without a number."""


def configure_export(parser: argparse.ArgumentParser) -> None:
    """Options of `emberline export`."""
    from emberline.export.evaluation import DEFAULT_ROWS
    from emberline.export.number_types import NUMBER_TYPES
    from emberline.export.program_options import DEVICES, PRECISIONS
    from emberline.serving.program import FORMATS
    from emberline.serving.triton.options import add_options

    parser.add_argument("--checkpoint", type=to_place, metavar="DIR", help="a step-N folder, or a run's folder: its newest step; or a URL of one")
    parser.add_argument("--output", type=to_place, required=True, metavar="MODELS", help="the folder of all models, or its URL, such as s3://...")
    parser.add_argument("--name", required=True, help="the model's name: the artifact becomes MODELS/NAME/VERSION")
    parser.add_argument(
        "--format",
        action="append",
        metavar="FORMAT[,FORMAT]",
        help=f"format of the programs: {', '.join(FORMATS)} (default: torchscript); several between commas, or given several times",
    )
    parser.add_argument("--full", action="store_true", help="write programs of the whole model too, with the tables inside")
    parser.add_argument(
        "--tile", action="store_true", help="write programs for tiled requests too, which reckon once for each user what is the user's alone"
    )
    parser.add_argument(
        "--dense-precision",
        choices=PRECISIONS,
        help="number type of matrix products in the programs that give outputs, which stay float32 (default: fp32)",
    )
    parser.add_argument("--device", choices=DEVICES, help="what --format aoti compiles for (default: cpu)")
    parser.add_argument("--tower", metavar="TOWER", help="export one tower only, as a model of its own: of a DSSM, user or item")
    parser.add_argument(
        "--quantize",
        action="append",
        default=[],
        metavar="[TABLE=]TYPE",
        help=f"number type of all tables, or of one: {', '.join(NUMBER_TYPES)} (default: fp32, as they were trained); may be given several times. "
        "auto: of each table that is not named what --memory-budget or --max-auc-drop asks for",
    )
    parser.add_argument(
        "--memory-budget",
        metavar="SIZE",
        help="bytes that rows of tables and the index of their raw ids may take where they are served, such as 4GiB: of each table the number type "
        "is chosen, so that answers change least",
    )
    parser.add_argument(
        "--quality-rows",
        type=int,
        default=DEFAULT_ROWS,
        metavar="N",
        help=f"where tables are stored in other types: rows that metrics are compared on, at most (default: {DEFAULT_ROWS})",
    )
    parser.add_argument(
        "--max-auc-drop",
        type=float,
        metavar="X",
        help="publish nothing where an AUC is smaller than the trained model's by more than X; --quantize auto makes tables as narrow as X allows",
    )
    parser.add_argument("--parity-rows", metavar="FILE", help="rows to compare model and artifact on; default: the config's evaluation data")
    parser.add_argument(
        "--unknown",
        action="append",
        default=[],
        metavar="[FEATURE=]POLICY",
        help=f"what ids read that own no row of a ZCH or dynamic table: {', '.join(UnknownIds)} (default: fallback); may be given several times",
    )
    parser.add_argument("--version", type=int, metavar="K", help="default: one more than the largest version there")
    parser.add_argument(
        "--delta-from", type=int, metavar="K", help="write only what changed since version K and its deltas: MODELS/NAME/K/deltas/NUMBER"
    )
    parser.add_argument("--triton", type=Path, metavar="DIR", help="write the model's folders for a Triton model repository too")
    parser.add_argument(
        "--triton-backend",
        choices=("python", "onnxruntime", "pytorch"),
        help="with --triton: what runs the dense program; other than python in an ensemble behind lookups (default: python)",
    )
    add_options(parser.add_argument_group("with --triton", "how Triton serves the model"), TRITON)
    _add_places(parser)


def _add_places(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--memory", metavar="SIZE", help="memory for rows of tables, such as 512MiB; they stream through it, whatever their size (default: 256MiB)"
    )
    parser.add_argument("--scratch", type=Path, metavar="DIR", help="holds copies of what comes from or goes to a URL (default: the system's folder)")
    parser.add_argument("--keep", type=_count, metavar="N", help="remove the oldest versions afterwards, so that N stay; default: keep all")
    parser.add_argument(
        "--candidate", action="store_true", help="publish the version, but have the present one served on: `emberline canary` tries the new one"
    )
    parser.add_argument(
        "--rollback",
        type=_count,
        nargs="?",
        const=_BEFORE,
        metavar="K",
        help="export nothing, but let servers take version K when they start, or, without K, the one before that which is served now",
    )
    parser.add_argument(
        "--forget-key", type=Path, metavar="FILE", help="the key of the list of ids that `emberline forget` wrote (default: the one in MODELS/NAME)"
    )


def run_export(args: argparse.Namespace) -> int:
    """Export, and print each step.

    Raises:
        EmberlineError: it cannot be done; nothing was published.
    """
    from emberline.export.opened import DEFAULT_MEMORY
    from emberline.export.remote import export_anywhere
    from emberline.serving.triton.ensemble import PYTHON, require_plain, write_triton_models
    from emberline.serving.triton.options import given_options, settings_of
    from emberline.train.sharding.sizes import parse_size

    _quiet_torch()
    memory = DEFAULT_MEMORY if args.memory is None else parse_size(args.memory)
    if args.rollback is not None:
        return _roll_back(args)
    if args.checkpoint is None:
        raise ConfigError("--checkpoint is needed: a run's folder or one step-N folder of it")
    triton = given_options(args, TRITON) + (["--triton-backend"] if args.triton_backend is not None else [])
    if triton and args.triton is None:
        raise ConfigError(f"{', '.join(triton)} goes with --triton DIR")
    settings = settings_of(args, TRITON)
    if args.triton_backend not in (None, PYTHON):
        require_plain(settings)
    if args.delta_from is not None:
        return _export_delta(args, memory)
    with _candidate(args):
        version = export_anywhere(
            args.checkpoint,
            args.output,
            args.name,
            format=args.format or "torchscript",
            quantize=args.quantize,
            parity_rows=args.parity_rows,
            version=args.version,
            progress=_say,
            unknown=args.unknown,
            keep=args.keep,
            precision=args.dense_precision or "fp32",
            full=args.full,
            device=args.device or "cpu",
            tower=args.tower or "",
            scratch=args.scratch,
            quality_rows=args.quality_rows,
            max_auc_drop=args.max_auc_drop,
            memory=memory,
            tile=args.tile,
            forget_key=args.forget_key,
            memory_budget=None if args.memory_budget is None else parse_size(args.memory_budget),
        )
    if args.triton is not None:
        for name in write_triton_models(version, args.triton, args.triton_backend or PYTHON, settings):
            _say(f"Triton model {args.triton / name}")
    return 0


def _export_delta(args: argparse.Namespace, memory: int) -> int:
    """What changed since a version; all that is the version's own is refused."""
    from emberline.export.remote import export_delta_anywhere

    if args.unknown or args.quantize or args.memory_budget is not None or args.version is not None:
        raise ConfigError(
            "--unknown, --quantize, --memory-budget and --version are the artifact's, which a delta does not change: leave them out with --delta-from"
        )
    if args.tower is not None:
        raise ConfigError("--tower is the artifact's, which a delta does not change: leave it out with --delta-from")
    if args.candidate:
        raise ConfigError("--candidate goes with the export of a whole version; a delta is part of its own")
    if args.keep is not None or args.triton is not None:
        raise ConfigError("--keep and --triton go with the export of a whole version; a delta is part of its own")
    for option in ("format", "full", "tile", "dense_precision", "device"):
        if getattr(args, option):
            raise ConfigError(f"--{option.replace('_', '-')} is the version's, whose programs a delta has too: leave it out with --delta-from")
    export_delta_anywhere(
        args.checkpoint,
        args.output,
        args.name,
        args.delta_from,
        parity_rows=args.parity_rows,
        progress=_say,
        scratch=args.scratch,
        quality_rows=args.quality_rows,
        max_auc_drop=args.max_auc_drop,
        memory=memory,
        forget_key=args.forget_key,
    )
    return 0


def _candidate(args: argparse.Namespace) -> AbstractContextManager[None]:
    """Has the present version served on where `--candidate` says so."""
    from emberline.export.keeping import as_candidate

    if not args.candidate:
        return nullcontext()
    if args.triton is not None:
        raise ConfigError("--candidate goes without --triton: the embedded server tries candidates")
    if is_url(args.output):
        raise ConfigError(f"--candidate needs a folder here; with {args.output}, export first and name the present version by --rollback K")
    return as_candidate(Path(args.output) / args.name)


def _roll_back(args: argparse.Namespace) -> int:
    from emberline.export.remote import roll_back_anywhere

    parser = argparse.ArgumentParser()
    configure_export(parser)
    allowed = ("command", "run", "output", "name", "rollback")
    if given := [name for name, value in vars(args).items() if name not in allowed and value != parser.get_default(name)]:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise ConfigError(f"--rollback exports nothing, and goes with --output and --name only: leave out {names}")
    version = roll_back_anywhere(args.output, args.name, None if args.rollback == _BEFORE else args.rollback)
    _say(f"{args.name}: version {version} is served from now on; servers take it when they start")
    return 0


def configure_inspect(parser: argparse.ArgumentParser) -> None:
    """Options of `emberline inspect`."""
    parser.add_argument(
        "path", type=to_place, metavar="PATH", help="an artifact, a model's folder, a checkpoint, a run's folder, a URL of one, or a config's file"
    )
    parser.add_argument("--zch", action="store_true", help="of a checkpoint: how full its ZCH tables are, scores of their ids, and the best of them")
    parser.add_argument("--png", type=Path, metavar="FILE", help="with --zch, of a run's folder: draw how full they were over the run's steps")


def run_inspect(args: argparse.Namespace) -> int:
    """Print what is there.

    Raises:
        EmberlineError: it cannot be read, or has no ZCH tables to be drawn.
    """
    from emberline.export.describe import describe
    from emberline.export.describe_remote import describe_url
    from emberline.train.checkpoint.occupancy_chart import write_occupancy_chart
    from emberline.train.checkpoint.zch_report import zch_lines

    if args.png is not None and not args.zch:
        raise ConfigError("--png goes with --zch")
    if is_url(args.path):
        if args.zch:
            raise ConfigError("--zch is for checkpoints on this machine")
        for line in describe_url(args.path):
            _say(line)
        return 0
    if args.png is not None:
        write_occupancy_chart(args.path, args.png)
    for line in zch_lines(args.path) if args.zch else describe(args.path):
        _say(line)
    return 0


def configure_verify(parser: argparse.ArgumentParser) -> None:
    """Options of `emberline verify`."""
    parser.add_argument("path", type=to_place, metavar="PATH", help="an artifact, a model's folder, a checkpoint, a run's folder, or a URL of one")
    parser.add_argument("--device", default="cpu", metavar="DEVICE", help="where an artifact is opened, as torch names it (default: cpu)")


def run_verify(args: argparse.Namespace) -> int:
    """Read every byte and say what was read; an error names what differs."""
    from emberline.export.describe import verify
    from emberline.export.describe_remote import verify_url

    for line in verify_url(args.path, args.device) if is_url(args.path) else verify(args.path, args.device):
        _say(line)
    return 0


def configure_explain(parser: argparse.ArgumentParser) -> None:
    """Options of `emberline explain`."""
    parser.add_argument(
        "path", type=to_place, metavar="MODEL", help="an artifact, a model's folder (or a URL of one), a checkpoint or a run's folder"
    )
    parser.add_argument("feature", metavar="FEATURE", help="a feature that has ids")
    parser.add_argument("value", metavar="ID", help="the value as a row has it; for a feature of several columns a JSON object of column and value")
    parser.add_argument("--json", action="store_true", help="print a list of JSON objects, one for each id and table")


def run_explain(args: argparse.Namespace) -> int:
    """Print the way of one value: a table for each id that it becomes and each table that is read.

    Raises:
        EmberlineError: there is no such model or feature, or it refuses the value.
    """
    from emberline.export.explain import explain, explain_lines
    from emberline.serving.fetch import localise

    found = explain(localise(args.path), args.feature, args.value)
    if args.json:
        _say(json.dumps(found, indent=1))
        return 0
    for place, facts in enumerate(found):
        for line in ([""] if place else []) + explain_lines(facts):
            _say(line)
    return 0


def configure_demo(parser: argparse.ArgumentParser) -> None:
    """Options of `emberline demo`."""
    parser.add_argument("--output", type=Path, default=Path(".demo"), metavar="DIR", help="where all files go (default: .demo); made anew each time")
    parser.add_argument("--data-only", action="store_true", help="write the data and the config, and stop there")


def run_demo(args: argparse.Namespace) -> int:
    """Run the whole line on MovieLens-100k."""
    from emberline.export.demo.demo import run, write_data

    _quiet_torch()
    if args.output.exists() and not args.output.is_dir():
        raise ExportError(f"{args.output} is a file, not a folder")
    signal.signal(signal.SIGTERM, _end)
    (write_data if args.data_only else run)(args.output, say=_say)
    return 0


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return int(text)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    """Leave through every `finally`, so that nothing that was started goes on."""
    raise SystemExit(128 + number)


def _quiet_torch() -> None:
    """Keep torch's note about its own tracing functions off the terminal: a user can do nothing about it."""
    logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
