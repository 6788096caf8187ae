"""Named remote agents and their credentials. Credentials stay in the process: a step carries only the agent's name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from ...errors import ConfigError
from ..connection.credentials import HeaderSource


@dataclass(frozen=True, slots=True)
class Remote:
    """Remote agent with a name.

    Attributes:
        url: Base address of the agent.
        headers: Headers of every request, also of the card's: a mapping, or a function (also a coroutine function) that
            returns one for each request.
        bearer: Bearer token, or None.
        api_key: API key, or None.
        idempotent: True if the agent recognizes repeated messages; see `RemoteAgent`.

    Raises:
        ConfigError: The URL is invalid.
    """

    url: str
    headers: HeaderSource | None = field(default=None, repr=False)
    bearer: str | None = field(default=None, repr=False)
    api_key: str | None = field(default=None, repr=False)
    idempotent: bool = False

    def __post_init__(self) -> None:
        if wrong := url_error(self.url):
            raise ConfigError(wrong)


def find_remote(remotes: Mapping[str, Remote], name: object) -> Remote:
    """Return the remote with a name, or a remote without credentials for a URL.

    Raises:
        ConfigError: `name` is neither a known name nor a URL.
    """
    if isinstance(name, str) and name in remotes:
        return remotes[name]
    if isinstance(name, str) and "://" not in name:
        known = ", ".join(sorted(remotes)) or "none"
        raise ConfigError(f"no remote is called {name!r}, and it is not a URL; known: {known}")
    return Remote(name)  # type: ignore[arg-type]


def url_error(url: object) -> str:
    """Return what is wrong with an agent's URL, without its password, or "" if the URL is valid."""
    if not isinstance(url, str):
        return f"an agent's URL is a text, not {type(url).__name__}"
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return f"{url!r} is not a URL"
    if parts.username is not None or parts.password is not None:
        return f"the URL for {parts.hostname} has a password: use a named Remote with headers instead"
    return "" if usable else f"{url!r}: an agent's URL begins with http:// or https:// and names a host"
