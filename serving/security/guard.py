"""Asks callers of HTTP for a token, on all paths but those that are open."""

from collections.abc import Collection

from starlette.types import ASGIApp, Receive, Scope, Send

from emberline.serving.observe.context import CURRENT
from emberline.serving.security.tokens import Tokens

OPEN_PATHS = ("/v2/health/live", "/v2/health/ready")
"""Paths that need no token, beside the console's own files."""
OPEN_CALLS = frozenset(("ServerLive", "ServerReady"))
"""Calls of gRPC that need none."""


class TokenGuard:
    """Lets requests through whose context has a token of the server's.

    Args:
        app: what answers them.
        tokens: of the server.
        open_paths: what needs no token.
    """

    def __init__(self, app: ASGIApp, tokens: Tokens, open_paths: Collection[str]) -> None:
        self._app, self._tokens, self._open_paths = app, tokens, frozenset(open_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request.

        Raises:
            UnauthenticatedError: it needs a token, and has none of them.
        """
        if scope["type"] == "http" and scope["path"] not in self._open_paths:
            context = CURRENT.get()
            self._tokens.check("" if context is None else context.authorization)
        await self._app(scope, receive, send)
