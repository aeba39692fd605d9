"""What a server's process logs: on stderr, with the time and the request that it is about."""

import json
import logging
from datetime import UTC, datetime

from emberline.serving.observe.context import BATCH, CURRENT

TEXT, JSON = "text", "json"
LOG_FORMATS = (TEXT, JSON)
_MOST_IDS = 8


def start_logging(log_format: str = TEXT) -> None:
    """Log warnings of all packages, and Emberline's notes too, such as of a delta that was added.

    Called again, it changes the form of the lines; where somebody else has set the log up before, it leaves that as it is.

    Args:
        log_format: of `LOG_FORMATS`.
    """
    root = logging.getLogger()
    handler = next((found for found in root.handlers if isinstance(found, _Handler)), None)
    if handler is None:
        handler = _Handler()
        logging.basicConfig(level=logging.WARNING, handlers=[handler])
    handler.setFormatter(JsonLines() if log_format == JSON else TextLines())
    logging.getLogger("emberline").setLevel(logging.INFO)


class _Handler(logging.StreamHandler):  # type: ignore[type-arg]
    """On stderr."""


class TextLines(logging.Formatter):
    """Time, level, logger and message, and the ids of the requests that it is about; a traceback follows on lines of its own."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        """The line without a traceback."""
        ids = ids_of(record)
        line = super().formatMessage(record)
        return f"{line} (request {', '.join(ids)})" if ids else line


class JsonLines(logging.Formatter):
    """One JSON object a line: `time` (UTC, ISO 8601), `level`, `logger`, `message`; where known `request_ids`, an array, `traceback`, and the fields
    that the record has in `fields`.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        found = {"time": time, "level": record.levelname, "logger": record.name, "message": record.getMessage(), **getattr(record, "fields", {})}
        if ids := ids_of(record):
            found["request_ids"] = ids
        if record.exc_info:
            found["traceback"] = self.formatException(record.exc_info)
        return json.dumps(found, ensure_ascii=False, default=str)


def ids_of(record: logging.LogRecord) -> list[str]:
    """The requests that a line is about: the record's own, that of the task that logs, or of the batch that the thread computes, some of many."""
    own: str | None = getattr(record, "request_id", None)
    if own is not None:
        return [own]
    if (context := CURRENT.get()) is not None:
        return [context.id]
    ids = [context.id for context in BATCH.get() if context is not None]
    return ids if len(ids) <= _MOST_IDS else [*ids[:_MOST_IDS], f"and {len(ids) - _MOST_IDS} more"]
