"""The command `emberline triton-repository`."""

import argparse
import sys
from pathlib import Path

from emberline.serving.triton.options import add_options, settings_of
from emberline.serving.triton.repository import write_repository
from emberline.storage import to_place


def configure_triton_repository(parser: argparse.ArgumentParser) -> None:
    """Options of `emberline triton-repository`."""
    parser.add_argument("models", type=to_place, metavar="MODELS", help="folder of models, <name>/<version>/..., or its URL")
    parser.add_argument("repository", type=Path, metavar="DIR", help="the folder that Triton reads; written again, it is brought up to date")
    add_options(parser)


def run_triton_repository(args: argparse.Namespace) -> int:
    """Write a folder for each model, over the version that is served of it.

    Raises:
        EmberlineError: there is no model, one is damaged, or it cannot be served so.
    """
    settings = settings_of(args)
    for name, version in write_repository(args.models, args.repository, settings).items():
        sys.stdout.write(f"{args.repository / name}: version {version}\n")
    return 0
