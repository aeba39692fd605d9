"""The command `emberline import-torcheasyrec`."""

import argparse
import sys
from pathlib import Path

from emberline.errors import ConfigError


def configure_import_torcheasyrec(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("checkpoint", type=Path, metavar="CKPT", help="a model.ckpt-STEP folder, or the folder that holds such: its newest is taken")
    parser.add_argument("--output", required=True, type=Path, metavar="DIR", help="the run's folder, new or empty: DIR/step-STEP is written")
    parser.add_argument("--config", type=Path, metavar="FILE", help="a config that this release reads; by default the pipeline.config beside CKPT")
    parser.add_argument("--map", type=Path, metavar="FILE", help="pairs of our name and theirs, one a line; * stands for the same on both sides")
    parser.add_argument("--embeddings-only", action="store_true", help="take the embedding system; everything behind it starts afresh, untrained")
    parser.add_argument("--skip", action="append", default=[], metavar="PATTERN", help="leave out their names that fit, such as '*.sequence_copy.*'")
    parser.add_argument("--step", type=int, metavar="N", help="batches trained, where the folder's name does not say it; of several, which one")


def run_import_torcheasyrec(args: argparse.Namespace) -> int:
    """Import, and print what was decided. Returns 0.

    Raises:
        EmberlineError: what went wrong; nothing was written.
    """
    from emberline.train.cli import quiet_libraries
    from emberline.train.interop.import_checkpoint import import_torcheasyrec
    from emberline.train.interop.name_map import NameMap, read_name_map
    from emberline.train.interop.selection import Wishes

    if args.step is not None and args.step < 0:
        raise ConfigError(f"--step must be 0 or more, found {args.step}")
    quiet_libraries()
    wishes = Wishes(map=read_name_map(args.map) if args.map is not None else NameMap(), embeddings_only=args.embeddings_only, skip=tuple(args.skip))
    path = import_torcheasyrec(args.checkpoint, args.output, config=args.config, wishes=wishes, step=args.step, tell=_say)
    _say(f"checkpoint: {path}")
    return 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
