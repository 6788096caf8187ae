"""Addresses to listen on, checked before anything is started, and as a client on this machine would write them."""

from __future__ import annotations

import os
import socket

from ..errors import ConfigError


def free_or_given(host: str, port: int, option: str) -> int:
    """`port`, or for 0 one that is free; nobody listens on it.

    Raises:
        ConfigError: it is taken, or `host` is no address of this machine; names the `option` that chooses another.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            s.bind(address)
            found: int = s.getsockname()[1]
            return found
    except OSError as e:
        reason = os.strerror(e.errno) if e.errno and e.errno > 0 else str(e.args[-1])
        raise ConfigError(f"can't listen on {host} port {port} ({reason}): choose another with {option}") from e


def local_url(host: str, port: int) -> str:
    """Where a client on this machine reaches a server that listens on `host`."""
    shown = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "[::1]"}.get(host)
    if shown is None:
        shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}"
