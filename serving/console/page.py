"""Serves the console's files, each kept by browsers and asked for again by its digest."""

import hashlib
from pathlib import Path

from fastapi import FastAPI, Request, Response

from emberline.serving.settings import ServerSettings

_FOLDER = Path(__file__).parent
_PAGE = "index.html"
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
HEADERS = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'",
    "cache-control": "no-cache",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
"""What each file is sent with: a browser runs nothing but these files, asks no other server, and shows the page in no other's frame."""
_CONTROL = b'data-model-control="no"'


def console_paths() -> tuple[str, ...]:
    """The paths of the page and its files: they tell nothing of the models, and are open to all who can reach the server."""
    return ("/", *sorted(f"/console/{name}" for name in _names() if name != _PAGE))


def add_console(app: FastAPI, settings: ServerSettings) -> None:
    """The routes `/` and `/console/<file>`.

    Args:
        app: gets them.
        settings: the page offers to load and unload models where callers may.
    """
    for name in _names():
        content = (_FOLDER / name).read_bytes()
        if name == _PAGE and settings.allows_model_control:
            assert _CONTROL in content
            content = content.replace(_CONTROL, b'data-model-control="yes"')
        path = "/" if name == _PAGE else f"/console/{name}"
        # A route of Starlette's: it answers HEAD too, and `/docs` does not list it.
        app.add_route(path, _File(content, _TYPES[Path(name).suffix]).answer, methods=["GET"], include_in_schema=False)


def _names() -> list[str]:
    return [path.name for path in sorted(_FOLDER.iterdir()) if path.suffix in _TYPES]


class _File:
    """One file in memory.

    Args:
        content: its bytes.
        media_type: what they are.
    """

    def __init__(self, content: bytes, media_type: str) -> None:
        self._content, self._media_type = content, media_type
        self._headers = {**HEADERS, "etag": f'"{hashlib.sha256(content).hexdigest()[:32]}"'}

    async def answer(self, request: Request) -> Response:
        """The file, or that it is the one that the caller has."""
        known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
        if self._headers["etag"] in known or known == ["*"]:
            return Response(status_code=304, headers=self._headers)
        return Response(self._content, headers=self._headers, media_type=self._media_type)
