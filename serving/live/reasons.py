"""Why a version is not served, for callers: what the log says without the places of this machine."""

import re
from pathlib import Path

from emberline.errors import EmberlineError, first_line
from emberline.serving.fetch import default_cache
from emberline.storage import Place

_MOST = 300
_PLACE = re.compile(r"(?<![\w.)\]])[/\\~]\w|://|::|\.\.[/\\]|[/\\]\.\.")
"""What may be a path or a URL. What is left of an artifact's file once its folder is taken away, `tables/user.safetensors`, is none."""
UNTOLD = "it could not be opened; the server's log says why"


def refusal_of(error: BaseException, place: Place, models_dir: Place, cache: Path | None) -> str:
    """That a version is refused and why, as `reason_of` tells it."""
    return f"{what_is(place)} is refused: {reason_of(error, place, models_dir, cache)}"


def what_is(place: Place) -> str:
    """What is to be opened: `version 3`; of another place than a version's folder, `what is to be served`."""
    name = str(place).rstrip("/").rpartition("/")[2]
    return f"version {name}" if name.isdecimal() else "what is to be served"


def reason_of(error: BaseException, place: Place, models_dir: Place, cache: Path | None) -> str:
    """The first line of an error, without the folders in it; `UNTOLD` where another path may be in it, or it is no error that we raise on purpose.

    Args:
        error: what opening raised.
        place: what was opened.
        models_dir: where it lies.
        cache: where what comes from a URL is kept; None for the default.
    """
    if not isinstance(error, EmberlineError):
        return UNTOLD
    text = first_line(error)
    fetched = re.escape(str(cache or default_cache())) + r"/[0-9a-f]{32}/[0-9]+"
    for folder in (re.escape(str(place).rstrip("/")), fetched, re.escape(str(models_dir).rstrip("/"))):
        end = r"(?:: |/|(?=[\s,;:)]|$))" if "/" in folder else "(?:: |/)"  # a single word may be one of the text's own
        text = re.sub(rf"(?<![\w./-]){folder}{end}", "", text)
    if not text or _PLACE.search(text):
        return UNTOLD
    return text if len(text) <= _MOST else text[:_MOST] + "..."
