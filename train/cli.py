"""The command `emberline train`."""

import argparse
import logging
import warnings
from pathlib import Path

from emberline.errors import ConfigError
from emberline.train.checkpoint.init_tables import VectorFile, parse_vector_file
from emberline.train.checkpoint.start import Beginning
from emberline.train.checkpoint.warm_start import WarmStart
from emberline.train.config import load_config
from emberline.train.dynamic.options import KernelKind
from emberline.train.job import TrainResult, run_training
from emberline.train.job_signals import stop_on_signals
from emberline.train.sharding.process_group import is_launched


def configure_train(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--config", required=True, type=Path, metavar="FILE", help="pipeline config (protobuf text)")
    parser.add_argument("--output", type=Path, metavar="DIR", help="folder for checkpoints and logs, new or empty; by default the config's model_dir")
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint in DIR; begin where there is none")
    parser.add_argument(
        "--accept-data-changes",
        action="store_true",
        help="with --resume: go on with other data; a pass under way begins anew, over the files as they are",
    )
    parser.add_argument("--plan", type=Path, metavar="FILE", help="shard the tables by this plan, written by `emberline plan` or by hand")
    _add_beginning(parser)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="what the model is on; with cuda, each rank has a GPU")


def _add_beginning(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dynamic-kernel",
        choices=[kind.value for kind in KernelKind],
        default=KernelKind.AUTO.value,
        help="who holds dynamic tables; auto: NVIDIA's dynamicemb on CUDA where it is installed, else emberline",
    )
    group = parser.add_argument_group("beginning", "what a new run takes over; one that goes on has it already")
    group.add_argument("--warm-start", type=Path, metavar="CKPT", help="the model of another run: a step-N folder, a run's folder, or RUN/best")
    group.add_argument("--map", type=Path, metavar="FILE", help="lines `our part  their part`, for parts that are called otherwise there")
    group.add_argument("--allow-missing", action="append", default=[], metavar="PATTERN", help="parts of this model that may begin afresh")
    group.add_argument("--allow-surplus", action="append", default=[], metavar="PATTERN", help="parts of the checkpoint that may be left out")
    group.add_argument(
        "--with-progress", action="store_true", help="go on where that run was: moments, step, place in the data; for a model that changed a little"
    )
    group.add_argument(
        "--fallback-as-default",
        action="store_true",
        help="with --warm-start: unknown ids of dynamic tables that are ZCH tables there read what they read there",
    )
    group.add_argument(
        "--init-table", action="append", default=[], type=_vector_file, metavar="TABLE=FILE", help="vectors from a parquet file: columns id, vector"
    )


def _vector_file(text: str) -> VectorFile:
    try:
        return parse_vector_file(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _beginning(args: argparse.Namespace) -> Beginning:
    if args.warm_start is None:
        if args.map is not None or args.allow_missing or args.allow_surplus or args.with_progress or args.fallback_as_default:
            raise ConfigError(
                "--map, --allow-missing, --allow-surplus and --with-progress are for --warm-start: to go on with a model that changed, begin a new "
                "run with --output NEW --warm-start OLD --with-progress, which keeps the moments of what stays, the step and the place in the data"
            )
        return Beginning(vectors=tuple(args.init_table))
    warm_start = WarmStart(
        checkpoint=args.warm_start,
        name_map=args.map,
        allow_missing=tuple(args.allow_missing),
        allow_surplus=tuple(args.allow_surplus),
        with_progress=args.with_progress,
        fallback_as_default=args.fallback_as_default,
    )
    return Beginning(warm_start, tuple(args.init_table))


def run_train(args: argparse.Namespace) -> int:
    """Train, and print how it ended. Returns 0, or 128 + the number of the signal that stopped it; under a launcher 0, or it would start anew.

    Raises:
        EmberlineError: what went wrong.
    """
    quiet_libraries()
    config = load_config(args.config)
    output = args.output or (Path(config.model_dir) if config.model_dir else None)
    if output is None:
        raise ConfigError("neither --output nor the config's model_dir says where to write", str(args.config))
    if args.accept_data_changes and not args.resume and not args.with_progress:
        raise ConfigError("--accept-data-changes is for --resume and --with-progress: another run takes the data as they are")
    with stop_on_signals() as stop:
        result = run_training(
            config,
            output,
            resume=args.resume,
            stop=stop,
            plan=args.plan,
            device=args.device,
            begin=_beginning(args),
            accept_data_changes=args.accept_data_changes,
            dynamic_kernel=KernelKind(args.dynamic_kernel),
        )
    if result.stopped:
        kept = f"checkpoint {result.checkpoint}; add --resume to go on" if result.checkpoint else "before the first step"
        _tell(result, f"stopped by {result.signal.name if result.signal else 'request'} at step {result.step}: {kept}")
        return 0 if is_launched() else stop.exit_status
    numbers = {"loss": result.loss, **result.metrics}
    _tell(result, f"done: {result.step} steps, {result.epoch} epochs; {', '.join(f'{name} {number:.6g}' for name, number in numbers.items())}")
    _tell(result, f"checkpoint: {result.checkpoint}")
    return 0


def _tell(result: TrainResult, text: str) -> None:
    """Print, on one rank for all."""
    if result.rank == 0:
        print(text)


def quiet_libraries() -> None:
    """Leave out what libraries say about themselves; errors stay."""
    warnings.filterwarnings("ignore", module=r"torch(\.|$)|torchrec(\.|$)|fbgemm_gpu(\.|$)")
    for name in ("torch", "torchrec", "fbgemm_gpu"):
        logging.getLogger(name).setLevel(logging.ERROR)
