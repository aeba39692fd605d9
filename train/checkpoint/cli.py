"""The command `reshard`."""

import argparse
from pathlib import Path

from emberline.train.checkpoint.report import reshard_lines


def configure_reshard(parser: argparse.ArgumentParser) -> None:
    """Options of `emberline reshard`."""
    parser.add_argument("checkpoint", type=Path, metavar="CKPT", help="a step-N folder, or a run's folder: its newest step")
    parser.add_argument("--world-size", type=_ranks, required=True, metavar="N", help="ranks that the checkpoint is to be restored on")


def run_reshard(args: argparse.Namespace) -> int:
    """Print what restoring on so many ranks does.

    Raises:
        EmberlineError: the checkpoint cannot be read, or cannot be restored on so many.
    """
    for line in reshard_lines(args.checkpoint, args.world_size):
        print(line)
    return 0


def _ranks(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, found {number}")
    return number
