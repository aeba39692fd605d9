"""The commands `evaluate` and `score`."""

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from emberline.train.cli import quiet_libraries
from emberline.train.scoring.evaluation import evaluate_files, write_metrics
from emberline.train.scoring.model import Scorer, open_scorer
from emberline.train.scoring.outputs import write_outputs
from emberline.train.sharding import process_group
from emberline.train.sharding.shared_fate import shared_fate


def configure_evaluate(parser: argparse.ArgumentParser) -> None:
    """Options of `emberline evaluate`."""
    _add_model(parser)
    parser.add_argument("--input", metavar="FILES", help="files, folders or patterns, with commas between; default: the config's evaluation data")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the numbers there, as JSON")
    parser.add_argument("--num-steps", type=_count, metavar="N", help="look at no more batches than this, on each rank")


def run_evaluate(args: argparse.Namespace) -> int:
    """Measure, and print the numbers.

    Raises:
        EmberlineError: what went wrong.
    """
    with _scorer(args) as scorer:
        numbers = evaluate_files(scorer, args.input, num_steps=args.num_steps, batch_size=args.batch_size)
        if scorer.ranks.is_first:
            print(", ".join(f"{name} {number:.6g}" for name, number in numbers.items()))
            if args.output is not None:
                write_metrics(args.output, scorer, numbers)
                print(f"written to {args.output}")
    return 0


def configure_score(parser: argparse.ArgumentParser) -> None:
    """Options of `emberline score`."""
    _add_model(parser)
    parser.add_argument("--input", required=True, metavar="FILES", help="files, folders or patterns, with commas between")
    parser.add_argument("--output", required=True, type=Path, metavar="DIR", help="a new folder for parquet files")
    parser.add_argument(
        "--keep-columns", type=_names, default=(), metavar="NAMES", help="columns of the data to write beside the outputs, such as keys"
    )
    parser.add_argument("--outputs", type=_names, default=(), metavar="NAMES", help="outputs to write; default: all that the model has")


def run_score(args: argparse.Namespace) -> int:
    """Score, and say how many rows there were.

    Raises:
        EmberlineError: what went wrong.
    """
    with _scorer(args) as scorer:
        rows = write_outputs(scorer, args.input, args.output, keep=args.keep_columns, outputs=args.outputs, batch_size=args.batch_size)
        if scorer.ranks.is_first:
            print(f"{rows:,} rows scored, written to {args.output}")
    return 0


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--checkpoint", type=Path, required=True, metavar="DIR", help="a step-N folder, a run's folder (its newest step), or RUN/best"
    )
    parser.add_argument("--batch-size", type=_count, metavar="N", help="rows that are looked at together; default: as the config says")
    parser.add_argument("--plan", type=Path, metavar="FILE", help="on several ranks: shard the tables by this plan")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="what the model is on; with cuda, each rank has a GPU")


@contextmanager
def _scorer(args: argparse.Namespace) -> Iterator[Scorer]:
    """The model that the options of `_add_model` name, on all ranks; says which it is."""
    quiet_libraries()
    with process_group(args.device) as ranks, shared_fate(ranks), open_scorer(args.checkpoint, ranks, args.plan) as scorer:
        if ranks.is_first:
            print(f"checkpoint {scorer.path}: step {scorer.step}")
        for note in scorer.notes:
            print(note)
        yield scorer


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, found {number}")
    return number


def _names(text: str) -> Sequence[str]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise argparse.ArgumentTypeError(f"must be names with commas between, found {text!r}")
    return names
