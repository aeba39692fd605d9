"""Another number of rows for ZCH tables of a checkpoint, on request: ids keep vectors, moments and counts while there is room."""

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from emberline.errors import CheckpointError, ConfigError
from emberline.train.checkpoint import store
from emberline.train.checkpoint.configs import read_again, read_checkpoint_config
from emberline.train.checkpoint.run_state import RunTensors, read_progress, restore_run, save_run
from emberline.train.config import PipelineConfig
from emberline.train.config.zch_sizes import with_zch_sizes
from emberline.train.features.common import check_count
from emberline.train.features.rows import LEAST_ZCH_SIZE
from emberline.train.features.sentences import unknown_name
from emberline.train.models import build_model, features_of
from emberline.train.sharding import process_group
from emberline.train.zch import zch_modules


def parse_size(text: str) -> tuple[str, int]:
    """`TABLE=N`.

    Raises:
        argparse.ArgumentTypeError: it is not of that form, or a config could not say N.
    """
    table, _, number = text.rpartition("=")
    if not table or not number.isdecimal():
        raise argparse.ArgumentTypeError(f"must be TABLE=ROWS, found {text!r}")
    problems: list[str] = []
    check_count("zch_size", int(number), LEAST_ZCH_SIZE, problems)
    if problems:
        raise argparse.ArgumentTypeError(f"table {table!r}: {problems[0]}")
    return table, int(number)


def resize_tables(path: Path, sizes: Mapping[str, int], output: Path, tell: Callable[[str], None]) -> Path:
    """Write a checkpoint with other sizes as `output/step-N`; a run goes on from it with `--resume` and a config of these sizes.

    One process does it, and holds the whole model.

    Args:
        path: the checkpoint, or a run's folder: its newest.
        sizes: new `zch_size` by table.
        output: a new or empty folder.
        tell: gets lines for people.

    Raises:
        CheckpointError: the checkpoint is damaged, or its model cannot be built.
        ConfigError: no ZCH table has such a name, or one would change that was not named.
    """
    # The run's modules import this one for the command line.
    from emberline.train.job_build import build_parts
    from emberline.train.job_folder import claim_folder

    info = store.verify_checkpoint(store.find_checkpoint(path))
    config = _resized(info.path, sizes)
    with claim_folder(output, resume=False), process_group() as ranks:
        if ranks.world_size > 1:
            raise ConfigError("one process changes the size of tables; start it without a launcher")
        parts = build_parts(config, None, ranks)
        tensors = RunTensors(parts.sharded, parts.model, parts.step.optimizer, parts.step.tensors(), ranks.group)
        progress, notes = restore_run(info.path, tensors, resized=sizes)
        for table, module in zch_modules(parts.model).items():
            if table in sizes:
                tell(f"table {table!r}: {module.rows_in_use:,} ids in {sizes[table]:,} rows")
        for note in notes:
            tell(note)
        return save_run(output, tensors, config, progress, info.imported)


def _resized(path: Path, sizes: Mapping[str, int]) -> PipelineConfig:
    """The checkpoint's config with the new sizes."""
    config = read_checkpoint_config(path)
    folder = Path(read_progress(path).config_folder)
    try:
        features = features_of(config)
        group = build_model(config, features, torch.device("meta"), search_paths=[folder, Path()]).embedding_group
    except ConfigError as error:
        raise CheckpointError(f"{path}: its model cannot be built: {error}") from error
    readers: dict[str, set[str]] = {}
    for lookup in (*group.registry.lookups, *group.registry.sequence_lookups):
        readers.setdefault(lookup.table, set()).add(lookup.feature)
    maps = [table.name for table in group.registry.tables if table.zch is not None]
    problems = [f"--zch-size: {unknown_name('ZCH table', table, maps)}" for table in sizes if table not in maps]
    by_feature: dict[str, int] = {}
    for table in maps:
        if table in sizes:
            by_feature |= dict.fromkeys(readers[table], sizes[table])
    for table in maps:
        others = sorted({by_feature[name] for name in readers[table] if name in by_feature} - {sizes.get(table)})
        if others:
            problems.append(f"--zch-size: table {table!r} is read by the same features; give it {others[0]} rows too")
    if problems:
        raise ConfigError(problems)
    # Under a name in the folder where the config was, from which a user's own module is imported.
    return read_again(with_zch_sizes(config.text, by_feature), str(folder / store.CONFIG_NAME))
