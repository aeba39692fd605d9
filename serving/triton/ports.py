"""Ports for a Triton: those that are free, kept from others until it binds them, which it does when its models are loaded."""

import socket
from collections.abc import Sequence
from contextlib import ExitStack

from emberline.errors import LaunchError


class Ports:
    """The ports of HTTP, gRPC and metrics, of one address.

    Args:
        host: the address.
        wanted: of each; 0 takes a free port.

    Attributes:
        chosen: what came of it.
    """

    def __init__(self, host: str, wanted: Sequence[int]) -> None:
        self._host, self._wanted = host, tuple(wanted)
        self._family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._held = ExitStack()
        self.chosen = self._wanted
        self.choose()

    def choose(self) -> None:
        """Look for free ports again."""
        with ExitStack() as open_sockets:
            chosen = []
            for port in self._wanted:
                if port == 0:
                    holder = open_sockets.enter_context(socket.socket(self._family))
                    holder.bind((self._host, 0))
                    port = holder.getsockname()[1]
                chosen.append(port)
        self.chosen = tuple(chosen)

    def hold(self) -> list[str]:
        """Keep the free ones from all but who says that it shares them; the options by which Triton does so.

        Triton cannot share the metrics port: another process may still take it.

        Raises:
            LaunchError: one was taken since it was chosen.
        """
        options = []
        for name, wanted, port in zip(("http", "grpc"), self._wanted, self.chosen, strict=False):
            if wanted == 0:
                if not _bind(self._held.enter_context(socket.socket(self._family)), (self._host, port)):
                    raise LaunchError(f"port {port} of {self._host} was taken before Triton started")
                options.append(f"--reuse-{name}-port=true")
        return options

    def let_go(self) -> None:
        """Hold none any more."""
        self._held.close()

    def have_lost_one(self) -> bool:
        """Whether another process has one that was free when it was chosen."""
        with ExitStack() as open_sockets:
            free = [_bind(open_sockets.enter_context(socket.socket(self._family)), (self._host, port)) for port in self.chosen]
        return any(wanted == 0 and not is_free for wanted, is_free in zip(self._wanted, free, strict=True))


def _bind(holder: socket.socket, place: tuple[str, int]) -> bool:
    """Whether a port could be bound, beside those who share it."""
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        holder.bind(place)
    except OSError:
        return False
    return True
