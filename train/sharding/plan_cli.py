"""The command `emberline plan`: which rank would hold which table, and what that costs, without GPUs and without memory for tables."""

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torchrec.distributed.types import ShardingPlan

from emberline.errors import ConfigError
from emberline.train.cli import quiet_libraries
from emberline.train.config import PipelineConfig, load_config
from emberline.train.config.planner_config import PlannerConfig
from emberline.train.embedding import EmbeddingGroup
from emberline.train.features.sentences import unknown_name
from emberline.train.models import build_model, features_of
from emberline.train.models.build import create_embedding_group
from emberline.train.optim import apply_sparse_optimizer, check_device
from emberline.train.sharding.dynamic_costs import costs_of
from emberline.train.sharding.fit_plan import save_plan, sharding_plan
from emberline.train.sharding.hardware import ASSUMED, BANDWIDTH_NAMES, Hardware
from emberline.train.sharding.heat_map import write_heat_map
from emberline.train.sharding.memory import rank_memory
from emberline.train.sharding.plan import check_dims
from emberline.train.sharding.planner import create_planner
from emberline.train.sharding.report import report_plan
from emberline.train.sharding.saved_plan import read_plan
from emberline.train.sharding.sharders import create_sharders
from emberline.train.sharding.sizes import parse_size
from emberline.train.sharding.traffic import measure_traffic

_MOST_SAMPLES = 1 << 32
_MOST_RANKS = 1 << 14
_LEAST_SIZE = 1 << 20
"""A size below it, in bytes, is no rank's memory."""


def configure_plan(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--config", required=True, type=Path, metavar="FILE", help="pipeline config (protobuf text), or just features and groups")
    parser.add_argument("--world-size", required=True, type=int, metavar="N", help="ranks in all")
    parser.add_argument("--local-world-size", type=int, metavar="N", help="ranks of each machine (default: 8, or all where there are fewer)")
    parser.add_argument("--hbm", metavar="SIZE", help="memory of each rank's GPU, such as 80GiB; without it, the ranks are CPUs")
    parser.add_argument("--ddr", metavar="SIZE", help="each rank's share of its host's memory (default: this machine's, by --local-world-size)")
    parser.add_argument("--ssd", metavar="SIZE", default="0", help="each rank's disk for key_value tables (default: none)")
    parser.add_argument("--batch-size", type=int, metavar="N", help="rows that each rank reads in a step (default: the config's)")
    parser.add_argument("--storage-reserve", type=float, metavar="X", help="share of each rank's memory that no table may have (default: 0.15)")
    parser.add_argument("--bandwidths", metavar="NAME=GB/S,...", help=f"in GB/s of one rank, any of {', '.join(BANDWIDTH_NAMES)}")
    parser.add_argument("--sample-batches", type=int, metavar="N", help="count ids a row in so many batches of the config's training data")
    parser.add_argument("--plan", type=Path, metavar="FILE", help="check and show this plan, instead of making one")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the plan, for `emberline train --plan`")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers as JSON")
    parser.add_argument("--png", type=Path, metavar="FILE", help="draw the memory of tables on ranks")


def run_plan(args: argparse.Namespace) -> int:
    """Plan, print, and write what was asked for.

    Raises:
        EmberlineError: the config, the options or the plan are wrong, or nothing fits.
    """
    quiet_libraries()
    _check_files(args)
    config = load_config(args.config)
    settings = _settings(config)
    hardware = _hardware(args, settings)
    model, sharders = plannable_model(config), create_sharders()
    check_dims(model, sharders, hardware.device)
    if config.train is not None:
        check_device(config.train.sparse_optimizer.optimizer, hardware.device)
    samples = _samples(args.sample_batches, config)
    planner = create_planner(
        model,
        hardware,
        batch_size=_at_least_one(args.batch_size, "--batch-size") or config.data.batch_size,
        constraints=config.train.global_embedding_constraints if config.train is not None else None,
        tables=config.train.constraints_by_table if config.train is not None else None,
        traffic=measure_traffic(config, features_of(config), samples) if samples else None,
        storage_reserve=settings.storage_reserve if args.storage_reserve is None else _share(args.storage_reserve),
        costs=costs_of(settings, hardware.device),
    )
    if args.plan is None:
        plan: ShardingPlan = planner.plan(model, sharders)
    else:
        plan = sharding_plan(read_plan(args.plan), model, sharders, hardware)
        planner.price(plan, model, sharders)
    report = report_plan(planner)
    print("\n".join(report.lines()))
    writers: dict[str, Callable[[Path], object]] = {
        "--output": lambda path: path.write_text(save_plan(plan, model, sharders, hardware).text(), encoding="utf-8"),
        "--json": lambda path: path.write_text(report.text(), encoding="utf-8"),
        "--png": lambda path: write_heat_map(report, path),
    }
    for name, path in _files(args).items():
        _write(name, path, writers[name])
    return 0


def plannable_model(config: PipelineConfig) -> nn.Module:
    """The model of a config with its tables left without memory, and the sparse optimiser on them, so that moments count.

    A config of features and groups alone gives a model that has nothing else.

    Raises:
        ConfigError: features, groups and model do not fit together.
    """
    meta, features = torch.device("meta"), features_of(config)
    model: nn.Module = nn.Module()
    if config.model is not None:
        model = build_model(config, features, meta)
    else:
        model.add_module("embedding_group", create_embedding_group(config, features, meta))
    group = model.get_submodule("embedding_group")
    assert isinstance(group, EmbeddingGroup)
    if config.train is not None:
        apply_sparse_optimizer(group.table_weights(), config.train.sparse_optimizer.optimizer)
    return model


def _settings(config: PipelineConfig) -> PlannerConfig:
    return config.train.planner if config.train is not None else PlannerConfig()


def _hardware(args: argparse.Namespace, settings: PlannerConfig) -> Hardware:
    device = "cpu" if args.hbm is None else "cuda"
    world_size = _at_least_one(args.world_size, "--world-size") or 1
    if world_size > _MOST_RANKS:
        raise ConfigError(f"--world-size must be at most {_MOST_RANKS}, found {world_size}: a plan names the rank of each shard")
    local = _at_least_one(args.local_world_size, "--local-world-size") or min(8, world_size)
    return Hardware(
        device=device,
        world_size=world_size,
        local_world_size=local,
        hbm=0 if args.hbm is None else _gpu_size(args.hbm),
        ddr=rank_memory(local) if args.ddr is None else _size("--ddr", args.ddr),
        ssd=_size("--ssd", args.ssd) or round(settings.ssd_gib * 2**30),
        bandwidths=ASSUMED[device].known(settings.bandwidths, "given").known(read_bandwidths(args.bandwidths or ""), "given"),
    )


def read_bandwidths(text: str) -> dict[str, float | None]:
    """The numbers of `hbm=2000,ddr=100`, by name.

    Raises:
        ConfigError: a name is unknown, or a number is none above 0; names all of them.
    """
    found: dict[str, float | None] = {}
    problems = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, number = part.partition("=")
        try:
            value = float(number)
        except ValueError:
            value = 0.0
        if name not in BANDWIDTH_NAMES:
            problems.append(f"--bandwidths: {unknown_name('bandwidth', name, BANDWIDTH_NAMES)}")
        elif not 0.0 < value < float("inf"):
            problems.append(f"--bandwidths: {name} must be a number above 0, found {number!r}")
        else:
            found[name] = value
    if problems:
        raise ConfigError(problems)
    return found


def _files(args: argparse.Namespace) -> dict[str, Path]:
    """What is to be written, by option."""
    files = {"--output": args.output, "--json": args.json, "--png": args.png}
    return {name: path for name, path in files.items() if path is not None}


def _check_files(args: argparse.Namespace) -> None:
    """Refuse, before any work, files that cannot be written."""
    problems = []
    for name, path in _files(args).items():
        if path.is_dir():
            problems.append(f"{name}: {path} is a folder; name a file in it")
        elif not path.parent.is_dir():
            problems.append(f"{name}: {path}: there is no folder {path.parent}; make it first")
    if problems:
        raise ConfigError(problems)


def _write(name: str, path: Path, write: Callable[[Path], object]) -> None:
    try:
        write(path)
    except OSError as error:
        raise ConfigError(f"{name}: {path} can't be written: {error.strerror or error}") from None


def _samples(asked: int | None, config: PipelineConfig) -> int:
    """Batches to count ids a row in."""
    if asked is None:
        asked = _settings(config).sample_batches or 0
    if not 0 <= asked < _MOST_SAMPLES:
        raise ConfigError(f"--sample-batches must be 0 or more, and below {_MOST_SAMPLES}, found {asked}")
    if asked and not config.train_input_path:
        raise ConfigError("ids a row are to be counted (--sample-batches), and train_input_path is missing: name the training files", config.source)
    return asked


def _size(name: str, text: str) -> int:
    """Bytes of an option; a small number without a unit was meant in another one."""
    try:
        found = parse_size(text)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error.problems[0]}") from None
    if 0 < found < _LEAST_SIZE and text.strip().isdecimal():
        raise ConfigError(f"{name}: {text} would be {found} bytes; write a unit: say {text.strip()}GiB")
    return found


def _gpu_size(text: str) -> int:
    found = _size("--hbm", text)
    if not found:
        raise ConfigError(f"--hbm must be above 0, found {text}; leave it out for CPUs")
    return found


def _at_least_one(value: int | None, name: str) -> int | None:
    if value is not None and value < 1:
        raise ConfigError(f"{name} must be at least 1, found {value}")
    return value


def _share(value: float) -> float:
    if not 0.0 <= value < 1.0:
        raise ConfigError(f"--storage-reserve must be in [0, 1), found {value}")
    return value
