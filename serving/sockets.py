"""Ports: bound early, so that a taken one is told before models are loaded."""

import ipaddress
import socket

from emberline.errors import LaunchError


def bind_socket(host: str, port: int, protocol: str, *, shared: bool = False) -> socket.socket:
    """A TCP socket on a port, not yet listening; port 0 takes a free one.

    Args:
        host: an IPv4 or IPv6 address, or a name.
        port: 0 to 65535.
        protocol: `HTTP` or `gRPC`, for the message.
        shared: whether other sockets of this user that say so too may have the port as well; the system spreads connections over those that listen.

    Raises:
        LaunchError: the port is taken, or the address is not this machine's.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise LaunchError(f"cannot listen on {host}:{port} for {protocol}: {error.strerror}; choose another port or host") from None
    return listener


def url_of(scheme: str, host: str, port: int) -> str:
    """`scheme://host:port`, an IPv6 address in brackets."""
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address; of names, only `localhost` is known to be one."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
