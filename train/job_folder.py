"""The folder that a run writes to: one run at a time, empty for a new run, the same config for one that goes on.

DIR/step-N/         checkpoints
DIR/metrics.jsonl   one line for each log interval and evaluation
DIR/result.json     step, final loss and evaluation of the run, when it is done
DIR/tensorboard/    events
"""

import dataclasses
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from emberline.errors import CheckpointError, ConfigError
from emberline.train.checkpoint import store
from emberline.train.checkpoint.configs import read_again, read_checkpoint_config
from emberline.train.checkpoint.run_state import read_layout
from emberline.train.config.pipeline import PipelineConfig
from emberline.train.sharding.process_group import ALONE, Ranks
from emberline.train.sharding.saved_plan import read_plan

LOCK_NAME = ".lock"
METRICS_NAME = "metrics.jsonl"
RESULT_NAME = "result.json"
TENSORBOARD_NAME = "tensorboard"
_MAX_LAUNCH_BYTES = 4096

_MAY_CHANGE = {
    "text",
    "source",
    "notes",
    "model_dir",
    "train_input_path",
    "data.negative_sampler.input_path",
    "eval_input_path",
    "eval",
    "export",
    "data.eval_batch_size",
    "train.planner",
    "train.global_embedding_constraints",
    "train.table_constraints",
    "train.num_steps",
    "train.num_epochs",
    "train.save_checkpoints_steps",
    "train.save_checkpoints_epochs",
    "train.save_checkpoints_async",
    "train.save_increments_steps",
    "train.keep_checkpoint_max",
    "train.log_step_count_steps",
    "train.use_tensorboard",
    "train.tensorboard_summaries",
}
"""What a resumed run may do otherwise: none of it changes what the steps so far have done. Files are compared by `job_data`, wherever they lie."""
_MAY_CHANGE_ANYWHERE = (
    ".embedding_constraints",
    ".dynamicemb.max_capacity",
    ".dynamicemb.init_capacity_per_rank",
    ".dynamicemb.cache_load_factor",
    ".dynamicemb.bucket_capacity",
    ".dynamicemb.init_table",
)
"""The same of each feature. Where a dynamic table has room for fewer ids, those of the lowest scores are dropped when it is taken up, and told."""


@contextmanager
def claim_folder(folder: Path, *, resume: bool, ranks: Ranks = ALONE) -> Iterator[bool]:
    """Hold a run's folder while the body runs, and make it where it isn't there; yields whether to go on with the run in it.

    That is so with `resume`, and where a launcher has started all ranks anew after it had begun the run in this folder. Rank 0 holds the folder
    for all.

    Raises:
        ConfigError: another run holds it, it cannot be written, it holds something and is not to be gone on with, or a rank doesn't see it.
    """
    if ranks.is_first:
        with _hold(folder, resume, ranks) as goes_on:
            ranks.of_first([goes_on])
            yield goes_on
        return
    (answer,) = ranks.of_first([0.0])
    if not (folder / LOCK_NAME).is_file():
        raise ConfigError(f"rank {ranks.rank} does not see {folder}, which rank 0 has made: --output must be in a file system that all ranks share")
    yield bool(answer)


@contextmanager
def _hold(folder: Path, resume: bool, ranks: Ranks) -> Iterator[bool]:
    is_new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written as the output folder: {error.strerror}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"{folder}: another training process is writing there; wait for it, or choose another --output") from None
        resume = resume or _begun_by_this_launch(descriptor, ranks)
        if resume:
            store.remove_drafts(folder)
        there = _contents(folder)
        if there and not resume:
            listed = ", ".join(there[:3]) + (", ..." if len(there) > 3 else "")
            raise ConfigError(f"{folder} is not empty ({listed}); add --resume to go on with its run, or choose another --output")
        os.pwrite(descriptor, ranks.launch.encode(), 0)
        yield resume
    finally:
        os.close(descriptor)
        if is_new and not _contents(folder):
            shutil.rmtree(folder)


def _begun_by_this_launch(descriptor: int, ranks: Ranks) -> bool:
    """Whether the launcher that restarted this process had begun the run; a first start forgets who had."""
    launch = os.pread(descriptor, _MAX_LAUNCH_BYTES, 0).decode(errors="replace")
    if ranks.restarts == 0:
        os.ftruncate(descriptor, 0)
        return False
    return bool(ranks.launch) and launch == ranks.launch


def _contents(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != LOCK_NAME)


def check_unused(output: Path) -> None:
    """Refuse what is there already, unless it is an empty folder.

    Raises:
        ConfigError: it is a file, or holds something.
    """
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ConfigError(f"{output} is there already, and not empty; choose another --output")


def newest_checkpoint(folder: Path, config: PipelineConfig, ranks: Ranks) -> Path | None:
    """The newest intact checkpoint of a run; rank 0 looks for all, and says what it leaves out.

    Raises:
        CheckpointError: the config has changed since, or every checkpoint is damaged.
    """
    step = -1
    if ranks.is_first:
        found, problems = store.find_intact(folder)
        for problem in problems:
            print(f"left out: {problem}")
        step = step if found is None else found.step
    (step_of_first,) = ranks.of_first([step])
    if step_of_first < 0:
        if ranks.is_first:
            print(f"nothing to resume in {folder}: beginning at step 0")
        return None
    path = store.step_path(folder, int(step_of_first))
    check_same_config(config, path, ranks.world_size)
    return path


def plan_of_checkpoint(path: Path, config: PipelineConfig, ranks: Ranks) -> Path | None:
    """The plan that a checkpoint was trained by: the run then goes on with the same bits.

    None where it is for other ranks, or the config says of anything that it may be planned otherwise now.
    """
    file = path / store.PLAN_NAME
    if not file.is_file() or _says_of_plans(read_checkpoint_config(path)) != _says_of_plans(read_again(config.text, config.source)):
        return None
    plan = read_plan(file)
    same = (plan.world_size, plan.local_world_size, plan.device) == (ranks.world_size, ranks.local_world_size, ranks.device.type)
    return file if same else None


def _says_of_plans(config: PipelineConfig) -> tuple[object, ...]:
    """Everything that decides where tables lie, but for the ranks."""
    train = config.need_train()
    return config.feature_configs, train.planner, train.global_embedding_constraints, train.table_constraints


def check_same_config(config: PipelineConfig, checkpoint: Path, world_size: int = 1) -> None:
    """Refuse to go on with a config that would have trained otherwise.

    How long to train, what to save and log, how to evaluate, and where tables lie may change, and `batch_size` where the rows that all ranks take
    in a step stay the same.

    Args:
        config: of the run that is to go on.
        checkpoint: which it goes on from.
        world_size: its ranks.

    Raises:
        CheckpointError: names every field that differs, with both values.
    """
    old, new = read_checkpoint_config(checkpoint), read_again(config.text, config.source)
    if old.data.batch_size * read_layout(checkpoint).world_size == new.data.batch_size * world_size:
        old = dataclasses.replace(old, data=dataclasses.replace(old.data, batch_size=new.data.batch_size))
    found = differences(old, new)
    if found:
        raise CheckpointError(f"the config is not the one that {checkpoint} was trained with: {'; '.join(found)}. Undo that, or start a new run")


def differences(old: object, new: object, path: str = "") -> list[str]:
    """Where two configs differ: `field: was a, is b` for each, leaving out what may change."""
    if path in _MAY_CHANGE or path.endswith(_MAY_CHANGE_ANYWHERE) or old == new:
        return []
    if dataclasses.is_dataclass(old) and type(old) is type(new):
        fields = [field.name for field in dataclasses.fields(old)]
        return [found for name in fields for found in differences(getattr(old, name), getattr(new, name), f"{path}.{name}" if path else name)]
    if isinstance(old, tuple) and isinstance(new, tuple) and any(dataclasses.is_dataclass(item) for item in (*old, *new)):
        return _tuple_differences(old, new, path)
    return [f"{path}: was {_short(old)}, is {_short(new)}"]


def _tuple_differences(old: tuple[object, ...], new: tuple[object, ...], path: str) -> list[str]:
    """Items by their names where they have one (features, groups), else by place."""
    before, after = _by_label(old), _by_label(new)
    found = [f"{path}[{label}] was taken out" for label in before if label not in after]
    found += [f"{path}[{label}] was added" for label in after if label not in before]
    found += [text for label in before if label in after for text in differences(before[label], after[label], f"{path}[{label}]")]
    return found if found or list(before) == list(after) else [f"{path}: the order changed"]


def _by_label(items: tuple[object, ...]) -> dict[object, object]:
    return {getattr(item, "feature_name", getattr(item, "group_name", place)): item for place, item in enumerate(items)}


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
