"""The command `reshard`."""

import argparse
from pathlib import Path

from emberline.errors import ConfigError
from emberline.train.checkpoint.report import reshard_lines
from emberline.train.checkpoint.resize import parse_size, resize_tables
from emberline.train.features.sentences import given_again


def configure_reshard(parser: argparse.ArgumentParser) -> None:
    """Options of `emberline reshard`."""
    parser.add_argument("checkpoint", type=Path, metavar="CKPT", help="a step-N folder, or a run's folder: its newest step")
    parser.add_argument("--world-size", type=_ranks, metavar="N", help="ranks that the checkpoint is to be restored on: tells what that does")
    parser.add_argument(
        "--zch-size", action="append", default=[], type=parse_size, metavar="TABLE=ROWS", help="another size of a ZCH table: writes a checkpoint"
    )
    parser.add_argument("--output", type=Path, metavar="DIR", help="with --zch-size: a run's folder, new or empty, that gets the checkpoint")


def run_reshard(args: argparse.Namespace) -> int:
    """Print what restoring on so many ranks does, or write a checkpoint with other sizes of tables.

    Raises:
        EmberlineError: the checkpoint cannot be read, or cannot be restored on so many, or its tables cannot have such sizes.
    """
    given = [table for table, _ in args.zch_size]
    problems = given_again("--zch-size: table", given)
    if (args.output is None) != (not given):
        problems.append("--zch-size and --output go together")
    if not given and args.world_size is None:
        problems.append("say --world-size N, or --zch-size TABLE=ROWS and --output DIR")
    if problems:
        raise ConfigError(problems)
    path = args.checkpoint
    if given:
        path = resize_tables(path, dict(args.zch_size), args.output, print)
        print(f"checkpoint: {path}")
    if args.world_size is not None:
        for line in reshard_lines(path, args.world_size):
            print(line)
    return 0


def _ranks(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, found {number}")
    return number
