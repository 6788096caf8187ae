"""Group of commands, options that several commands share, and the check of a port."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from functools import reduce
from typing import Any

import click

from ..errors import ConfigError

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

PORT = click.IntRange(0, 65535)

LOG_LEVEL = click.Choice(["debug", "info", "warning", "error", "critical"], case_sensitive=False)


class CommandGroup(click.Group):
    """Group of commands whose arguments must be UTF-8, and whose errors in the configuration are printed as one line.

    Python represents other bytes by surrogates, which neither the store nor a request can contain.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments of the group, followed by those of the command.

        Raises:
            click.UsageError: An argument is not UTF-8.
        """
        for argument in () if ctx.resilient_parsing else args:
            try:
                argument.encode()
            except UnicodeEncodeError:
                text = argument.encode(errors="surrogateescape").decode(errors="backslashreplace")
                raise click.UsageError(f"the argument '{text}' is not UTF-8: encode it as UTF-8", ctx) from None
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command.

        Raises:
            click.ClickException: The command has raised a ConfigError.
        """
        try:
            return super().invoke(ctx)
        except ConfigError as e:
            raise click.ClickException(str(e)) from e


def with_options(*options: Decorator) -> Decorator:
    """Return a decorator that adds options to a command, in the order of its help."""
    return lambda command: reduce(lambda decorated, option: option(decorated), reversed(options), command)


def available_port(host: str, port: int, option: str, *, shared: bool = False) -> int:
    """Return `port` if it is free, or any free port if `port` is 0.

    Args:
        host: Address to listen on.
        port: Port to check.
        option: Option that the message suggests.
        shared: True for a port that several processes may share (SO_REUSEPORT), such as gRPC's.

    Raises:
        ConfigError: The port is in use, or `host` is not an address of this machine. The message suggests `option`.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if shared:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            s.bind(address)
            bound: int = s.getsockname()[1]
            return bound
    except OSError as e:
        reason = os.strerror(e.errno) if e.errno and e.errno > 0 else str(e.args[-1])
        raise ConfigError(f"cannot listen on {host} port {port} ({reason}): choose another with {option}") from e
