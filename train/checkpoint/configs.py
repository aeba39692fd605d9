"""The config inside a checkpoint."""

import logging
from pathlib import Path

from emberline.errors import CheckpointError, ConfigError
from emberline.train.checkpoint.store import CONFIG_NAME
from emberline.train.config import PipelineConfig, parse_config

_NOTES = logging.getLogger("emberline.train.config.load")


def read_again(text: str, source: str) -> PipelineConfig:
    """Parse a config that was read before, without telling its notes again.

    Raises:
        ConfigError: this release does not understand it.
    """

    def silent(_record: logging.LogRecord) -> bool:
        return False

    _NOTES.addFilter(silent)
    try:
        return parse_config(text, source=source)
    finally:
        _NOTES.removeFilter(silent)


def read_checkpoint_config(checkpoint: Path) -> PipelineConfig:
    """The config that a checkpoint was trained with.

    Raises:
        CheckpointError: it cannot be read, or this release does not understand it.
    """
    path = checkpoint / CONFIG_NAME
    try:
        return read_again(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError, ConfigError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
