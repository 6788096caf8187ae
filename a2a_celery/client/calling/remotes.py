"""Which agents a worker calls, and as whom. Credentials stay in this process: a step names its agent, and no more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from ...errors import ConfigError
from ..credentials import HeaderSource


@dataclass(frozen=True, slots=True)
class Remote:
    """An agent that is called by name.

    `headers` go with every request, also those for its card: a mapping, or a function that gives one, asynchronous or
    not, which is called for each request, so that a token can be a fresh one. `bearer` and `api_key` are as for
    `RemoteAgent`; `idempotent` too.

    Raises:
        ConfigError: the URL can't be one of an agent.
    """

    url: str
    headers: HeaderSource | None = field(default=None, repr=False)
    bearer: str | None = field(default=None, repr=False)
    api_key: str | None = field(default=None, repr=False)
    idempotent: bool = False

    def __post_init__(self) -> None:
        if wrong := fault_of(self.url):
            raise ConfigError(wrong)


def find(remotes: Mapping[str, Remote], name: object) -> Remote:
    """The remote of that name, or one without credentials for a URL.

    Raises:
        ConfigError: `name` is neither.
    """
    if isinstance(name, str) and name in remotes:
        return remotes[name]
    if isinstance(name, str) and "://" not in name:
        known = ", ".join(sorted(remotes)) or "none"
        raise ConfigError(f"no remote is called {name!r}, and it is no URL; known: {known}")
    return Remote(name)  # type: ignore[arg-type]


def fault_of(url: object) -> str:
    """What is wrong with an agent's URL; "" if nothing is. Passwords are not repeated."""
    if not isinstance(url, str):
        return f"an agent's URL is a text, not {type(url).__name__}"
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return f"{url!r} is no URL"
    if parts.username is not None or parts.password is not None:
        return f"the URL for {parts.hostname} has a password in it: give a Remote with headers its name instead"
    return "" if usable else f"{url!r}: an agent's URL begins with http:// or https:// and names a host"
