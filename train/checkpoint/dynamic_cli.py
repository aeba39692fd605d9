"""The commands `expire` and `increments`."""

import argparse
from pathlib import Path

from emberline.train.checkpoint.apply_increments import apply_increments
from emberline.train.checkpoint.expire import expire_ids, parse_age


def configure_expire(parser: argparse.ArgumentParser) -> None:
    """Options of `emberline expire`."""
    parser.add_argument("checkpoint", type=Path, metavar="CKPT", help="a step-N folder, or a run's folder: its newest step")
    limit = parser.add_mutually_exclusive_group(required=True)
    limit.add_argument("--older-than", type=_age, metavar="AGE", help="take out ids that training last read so long before its last step: 30d, 12h")
    limit.add_argument("--before-step", type=_step, metavar="N", help="or before this training step")
    parser.add_argument("--table", action="append", default=[], metavar="TABLE", help="only of this table; may be given again")
    parser.add_argument("--output", required=True, type=Path, metavar="DIR", help="a run's folder, new or empty, that gets the checkpoint")


def run_expire(args: argparse.Namespace) -> int:
    """Write a checkpoint without ids that training has not read for long.

    Raises:
        EmberlineError: the checkpoint cannot be read, has no such tables, or does not know when its steps were done.
    """
    path = expire_ids(args.checkpoint, args.output, print, older_than_s=args.older_than, before_step=args.before_step, tables=tuple(args.table))
    print(f"checkpoint: {path}")
    return 0


def configure_increments(parser: argparse.ArgumentParser) -> None:
    """Options of `emberline increments`."""
    parser.add_argument("action", choices=("apply",), help="apply: make a checkpoint of one and the increments that lead on from it")
    parser.add_argument("checkpoint", type=Path, metavar="CKPT", help="a step-N folder, or a run's folder: its newest step")
    parser.add_argument("increments", type=Path, nargs="+", metavar="DIR", help="increments in order, or RUN/increments: all that lead on")
    parser.add_argument("--output", required=True, type=Path, metavar="DIR", help="a run's folder, new or empty, that gets the checkpoint")


def run_increments(args: argparse.Namespace) -> int:
    """Write a checkpoint whose tables that grow are those of the last increment's step.

    Raises:
        EmberlineError: a part is damaged, or does not lead on from the one before.
    """
    path = apply_increments(args.checkpoint, args.increments, args.output, print)
    print(f"checkpoint: {path}")
    return 0


def _age(text: str) -> int:
    try:
        return parse_age(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _step(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"must be at least 0, found {number}")
    return number
