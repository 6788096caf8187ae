"""URLs of the store, of the broker and of the archive: their validation, and Celery's variables for URLs.

The URL of the archive is parsed without SQLAlchemy, which most processes do not need.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode, urlsplit

SENTINEL_PORT = 26379
SENTINEL_FORM = "sentinel://host:26379,host2:26379/0?master_name=mymaster"

UNENCODED = "must be a URL: percent-encode special characters in user and password, such as # as %23"
"""Rule for URLs with a password. The error of `urlsplit` must not be shown, because the error contains the password."""

STORE_SCHEMES = {
    "redis": "redis",
    "rediss": "rediss",
    "unix": "unix",
    "redis+socket": "unix",
    "valkey": "redis",
    "valkeys": "rediss",
}
"""Schemes of the URL of a server, each with the scheme in redis-py's format."""

SENTINEL_SCHEMES = ("sentinel", "sentinels")

PLAIN_SCHEMES = ("redis", "rediss", "valkey", "valkeys", "amqp", "amqps", "pyamqp")
"""Schemes of broker URLs with one host. Other transports of kombu may have URLs in a format of their own."""

BROKER_VARIABLE = "CELERY_BROKER_URL"
BROKER_READ_VARIABLE = "CELERY_BROKER_READ_URL"
BROKER_WRITE_VARIABLE = "CELERY_BROKER_WRITE_URL"
RESULTS_VARIABLE = "CELERY_RESULT_BACKEND"
"""Celery's environment variables for the URLs of the broker and of the result backend."""

_TEXT = (r".+", "a text")
_NUMBER = (r"\d{1,9}", "a number")
_SECONDS = (r"\d{1,9}(\.\d{1,6})?", "a number of seconds")
_BOOLEAN = (r"(?i:true|false|yes|no|1|0)", "true or false")

OPTIONS: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(("client_name", "password", "username"), _TEXT),
    **dict.fromkeys(("db", "health_check_interval", "virtual_host"), _NUMBER),
    **dict.fromkeys(("socket_connect_timeout", "socket_timeout"), _SECONDS),
    **dict.fromkeys(("retry_on_timeout", "socket_keepalive"), _BOOLEAN),
    "max_connections": (r"[2-9]|[1-9]\d{1,8}", "a number from 2"),
    "protocol": (r"[23]", "2 or 3"),
}
"""Options of a store URL, each with the pattern of its values and a description of them. redis-py has further options,
which change the replies, or which redis-py accepts only as arguments."""

TLS_OPTIONS: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(("ssl_ca_certs", "ssl_ca_data", "ssl_ca_path", "ssl_certfile", "ssl_ciphers"), _TEXT),
    **dict.fromkeys(("ssl_exclude_verify_flags", "ssl_include_verify_flags", "ssl_keyfile", "ssl_password"), _TEXT),
    "ssl_cert_reqs": (r"none|optional|required|CERT_NONE|CERT_OPTIONAL|CERT_REQUIRED", "none, optional or required"),
    "ssl_check_hostname": _BOOLEAN,
    "ssl_min_version": _NUMBER,
}
"""Further options of a store URL with TLS."""

SENTINEL_OPTIONS: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(("master_name", "sentinel_password", "sentinel_username"), _TEXT),
    "min_other_sentinels": _NUMBER,
    "sentinel_ssl": _BOOLEAN,
}
"""Options of a URL of Sentinels."""


def is_redis_url(url: str) -> bool:
    """Return True if `url` is the URL of a Redis or Valkey server."""
    return _scheme(url) in STORE_SCHEMES


def is_sentinel_url(url: str) -> bool:
    """Return True if `url` contains the addresses of Sentinels."""
    return _scheme(url) in SENTINEL_SCHEMES


def is_encoded_url(text: str) -> bool:
    """Return True if `text` is a URL whose user and password are percent-encoded.

    A password with a slash, a question mark or a number sign divides a URL before the password's end. The result is
    then False, because the rest of the password would be shown as a part of the path.
    """
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    divides_user_info = ":" in parts.netloc and "@" not in parts.netloc and "@" in text
    return bool(parts.scheme) and "://" in text and not divides_user_info


def is_url(text: str) -> bool:
    """Return True if `text` is an encoded URL with at most one host."""
    try:
        return is_encoded_url(text) and urlsplit(text).port != 0
    except ValueError:
        return False


def is_broker_url(url: str) -> bool:
    """Return False if kombu cannot parse `url`. kombu's error contains a part of the password.

    kombu accepts several URLs separated by semicolons, and reads a part without a scheme as a host.
    """
    return all(_scheme(part) not in PLAIN_SCHEMES or is_url(part) for part in url.split(";"))


def store_url_mistake(url: str) -> str:
    """Return the rule that the store URL `url` violates, or "" if the URL is valid. The rule contains no secrets."""
    try:
        if is_sentinel_url(url):
            SentinelAddress.of(url)
        else:
            _check_server(url)
    except ValueError as e:
        return str(e)
    return ""


def _check_server(url: str) -> None:
    scheme = STORE_SCHEMES.get(_scheme(url))
    if scheme is None:
        raise ValueError(f"must begin with one of {', '.join((*STORE_SCHEMES, *SENTINEL_SCHEMES))}")
    if not is_encoded_url(url) or urlsplit(url).fragment:
        raise ValueError(UNENCODED)
    parts = urlsplit(url)
    _options(parts.query, OPTIONS, has_tls=scheme == "rediss")
    if scheme == "unix":
        return
    if {",", ";"} & set(parts.netloc.rpartition("@")[2] + parts.path):
        raise ValueError("must have a single host, the primary")
    if not is_url(url):
        raise ValueError("must have a port from 1 to 65535")
    if not (parts.path.removeprefix("/") or "0").isdecimal():
        raise ValueError("must have a number as its database, such as redis://host:6379/0")


def _options(query: str, rules: Mapping[str, tuple[str, str]], *, has_tls: bool) -> dict[str, str]:
    """Return the options in `query`.

    Raises:
        ValueError: An option is unknown or has an invalid value. The message contains no value, which may be a secret.
    """
    pairs = parse_qsl(query, keep_blank_values=True)
    for name, value in pairs:
        if name not in rules and name not in TLS_OPTIONS:
            shown_name = name if re.fullmatch(r"[a-z][a-z_]{1,39}", name) else "with this name"
            raise ValueError(f"must not have the option {shown_name}; known: {', '.join(rules)}, with TLS also ssl_…")
        if "ssl" in name and not has_tls:
            raise ValueError(f"must begin with rediss://, valkeys:// or sentinels:// to have the option {name}")
        pattern, description = rules.get(name) or TLS_OPTIONS[name]
        if not re.fullmatch(pattern, value, re.ASCII):
            raise ValueError(f"must have {description} as its {name}")
    if len(dict(pairs)) < len(pairs):
        raise ValueError("must have each option only once")
    return dict(pairs)


def _scheme(url: str) -> str:
    scheme, separator, _ = url.partition("://")
    return scheme.lower() if separator else ""


def redis_url(url: str) -> str:
    """Convert a store URL from Celery's format to redis-py's format, which differs for Unix sockets, Valkey and TLS."""
    scheme = STORE_SCHEMES.get(_scheme(url), _scheme(url))
    rest = re.sub(r"(?<=ssl_cert_reqs=)CERT_\w+", lambda match: match[0][5:].lower(), url.partition("://")[2])
    return f"{scheme}://{rest.replace('virtual_host=', 'db=') if scheme == 'unix' else rest}"


def url_address(url: str | None) -> str:
    """Return `url` without user, password and options, for display. Return "" for None."""
    if not url:
        return ""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


@dataclass(frozen=True, slots=True)
class SentinelAddress:
    """Sentinels and the name of their primary, parsed from a URL of the store.

    The form is ``sentinel://user:password@host:26379,host2:26379/0?master_name=mymaster``. The user, the password and
    the database belong to the primary. ``sentinels://`` enables TLS to the primary and, unless ``sentinel_ssl`` is
    false, to the Sentinels, with the options ``ssl_…``. The options ``sentinel_username`` and ``sentinel_password``
    apply to the Sentinels. The option ``min_other_sentinels`` has the same meaning as in redis-py.
    """

    sentinels: tuple[tuple[str, int], ...]
    master_name: str
    min_other_sentinels: int
    primary_url: str
    """redis-py URL with the user, password, database and TLS options of the primary. The host is a placeholder."""

    sentinel_url: str
    """redis-py URL with the user, password and TLS options of the Sentinels. The host is a placeholder."""

    @classmethod
    def of(cls, url: str) -> SentinelAddress:
        """Parse `url`.

        Raises:
            ValueError: The URL is invalid. The message is the violated rule.
        """
        if not is_encoded_url(url) or urlsplit(url).fragment:
            raise ValueError(UNENCODED)
        parts = urlsplit(url)
        user, _, hosts = parts.netloc.rpartition("@")
        if "@" in user:
            raise ValueError("must have user and password once, before the first host: encode each @ in them as %40")
        database = parts.path.removeprefix("/") or "0"
        if not database.isdecimal():
            raise ValueError(f"must have a number as its database: {SENTINEL_FORM}")
        has_tls = parts.scheme == "sentinels"
        options = _options(parts.query, SENTINEL_OPTIONS, has_tls=has_tls)
        if "master_name" not in options:
            raise ValueError(f"must have the option master_name: {SENTINEL_FORM}")
        has_sentinel_tls = has_tls and options.get("sentinel_ssl", "true").lower() in ("true", "yes", "1")
        tls = {name: value for name, value in options.items() if name in TLS_OPTIONS}
        own = {name: options[f"sentinel_{name}"] for name in ("username", "password") if f"sentinel_{name}" in options}
        return cls(
            tuple(map(_host, hosts.split(","))),
            options["master_name"],
            int(options.get("min_other_sentinels", "0")),
            _url(f"{user}@sentinel/{database}" if user else f"sentinel/{database}", tls, has_tls=has_tls),
            _url("sentinel/0", {**(tls if has_sentinel_tls else {}), **own}, has_tls=has_sentinel_tls),
        )


def _host(text: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = "", 0
    if not host or port == 0 or parts.netloc != text:
        raise ValueError("must have hosts separated by commas, with ports from 1 to 65535")
    return host, port or SENTINEL_PORT


def _url(rest: str, options: Mapping[str, str], *, has_tls: bool) -> str:
    return redis_url(f"{'rediss' if has_tls else 'redis'}://{rest}?{urlencode(options)}")


ARCHIVE_DRIVERS = ("postgresql+asyncpg", "mysql+aiomysql", "mariadb+aiomysql", "sqlite+aiosqlite")
ARCHIVE_URL = re.compile(rf"({'|'.join(map(re.escape, ARCHIVE_DRIVERS))})://[^/?]*/(?!:memory:)[^?].*")
"""Pattern of the URL of a persistent database with an asynchronous driver."""
