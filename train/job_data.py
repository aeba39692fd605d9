"""The data of a run: which files it trains on, and whether they are those that a checkpoint was trained on.

A place in the data means the same rows only as long as the files are the same, by name, order, size and number of rows.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from emberline.errors import CheckpointError
from emberline.train.checkpoint.configs import read_checkpoint_config
from emberline.train.checkpoint.run_state import Progress
from emberline.train.config import PipelineConfig
from emberline.train.data import DataReader
from emberline.train.data.files import DataFile, file_changes, list_files
from emberline.train.data.open_source import suffixes_of

ROWS, ITEMS = "train_input_path", "negative_sampler.input_path"
RunFiles = Mapping[str, Sequence[DataFile]]
"""By the config's field that names them."""
DataChanges = Mapping[str, Sequence[str]]
"""A sentence for each change, likewise."""


def files_of_run(config: PipelineConfig, reader: DataReader) -> RunFiles:
    """The files of a run, as they are now.

    Raises:
        DataError: a file is gone.
    """
    sampler = config.data.negative_sampler
    items = {} if sampler is None else {ITEMS: list_files(sampler.input_path, suffixes_of(config.data))}
    return {ROWS: reader.files(), **items}


def check_same_data(checkpoint: Path, progress: Progress, config: PipelineConfig, files: RunFiles, *, accept: bool) -> DataChanges:
    """Refuse to go on with other data, unless that is accepted.

    Args:
        checkpoint: which the run goes on from.
        progress: of the checkpoint.
        config: of the run.
        files: of the run.
        accept: whether other data are.

    Returns:
        what changed, a sentence each, by the config's field.

    Raises:
        CheckpointError: the data changed, and that is not accepted; names every file.
    """
    changes = data_changes(checkpoint, progress, config, files)
    if changes and not accept:
        shown = "; ".join(f"{field}: {text}" for field, texts in changes.items() for text in texts)
        raise CheckpointError(
            f"the data are not those that {checkpoint} was trained on: {shown}. Undo that, or add --accept-data-changes: "
            "a pass under way then begins anew, over the files as they are now"
        )
    return changes


def data_changes(checkpoint: Path, progress: Progress, config: PipelineConfig, files: RunFiles) -> DataChanges:
    """How the data differ from those of a checkpoint; of one that did not note its files, whether the config names others."""
    if progress.files is None:
        before = read_checkpoint_config(checkpoint)
        named = {ROWS: (before.train_input_path, config.train_input_path), ITEMS: (_items(before), _items(config))}
        return {field: [f"was {old!r}, is {new!r}"] for field, (old, new) in named.items() if old != new}
    changes = {field: file_changes(progress.files.get(field, ()), files.get(field, ())) for field in dict.fromkeys([*progress.files, *files])}
    return {field: texts for field, texts in changes.items() if texts}


def _items(config: PipelineConfig) -> str:
    return config.data.negative_sampler.input_path if config.data.negative_sampler is not None else ""
