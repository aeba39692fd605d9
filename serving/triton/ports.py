"""Ports for a Triton: those that are free, kept from others until it binds them, which it does when its models are loaded."""

import socket
from collections.abc import Sequence
from contextlib import ExitStack

from emberline.errors import LaunchError

_SHARED = ("http", "grpc")
"""Ports that Triton can bind beside a socket that keeps them for it. Metrics, the last, it cannot."""


class Ports:
    """The ports of HTTP, gRPC and metrics, of one address.

    Args:
        host: the address.
        wanted: of each; 0 takes a free port.

    Attributes:
        chosen: what came of it; 0 stays where none was taken yet.
    """

    def __init__(self, host: str, wanted: Sequence[int]) -> None:
        self._host, self._wanted = host, tuple(wanted)
        self._family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._held = ExitStack()
        self.chosen = self._wanted

    def take(self) -> list[str]:
        """Choose free ones, and keep those that can be kept from all but this user's who say that they share them; Triton's options to do so.

        The system gives a port that is kept so to nobody who asks for a free one, so that two that are started at once never share. The metrics
        port cannot be kept: another process may still take it.

        Raises:
            LaunchError: the address has no port to give.
        """
        with ExitStack() as until_all_differ:
            try:
                self.chosen = tuple(port or self._free(until_all_differ, place < len(_SHARED)) for place, port in enumerate(self._wanted))
            except OSError as error:
                self.let_go()
                raise LaunchError(f"{self._host} has no free port for Triton: {error.strerror}") from error
        return [f"--reuse-{name}-port=true" for name, wanted in zip(_SHARED, self._wanted, strict=False) if not wanted]

    def let_go(self) -> None:
        """Keep none any more."""
        self._held.close()

    def lost_metrics(self) -> bool:
        """Whether another process has the metrics port, which was free when it was chosen. Ask when Triton has ended: it is no other then."""
        if self._wanted[-1]:
            return False
        with socket.socket(self._family) as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                other.bind((self._host, self.chosen[-1]))
            except OSError:
                return True
        return False

    def _free(self, for_now: ExitStack, is_shared: bool) -> int:
        """A free port, kept until `let_go` where that does not keep Triton off, too, else `for_now`."""
        holder = (self._held if is_shared else for_now).enter_context(socket.socket(self._family))
        if is_shared:
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind((self._host, 0))
        port: int = holder.getsockname()[1]
        return port
