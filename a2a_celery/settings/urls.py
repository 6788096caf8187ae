"""URLs of the store and of the archive, their validation, and Celery's variables for URLs.

The URL of the archive is parsed without SQLAlchemy, which most processes do not need.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, parse_qs, parse_qsl, urlencode, urlsplit

STORE_SCHEMES = ("redis", "rediss", "unix", "redis+socket", "valkey", "valkeys")
SOCKET_SCHEMES = ("unix", "redis+socket")
SENTINEL_SCHEMES = ("sentinel", "sentinels")
FOREIGN_SENTINEL_SCHEMES = ("redis+sentinel", "rediss+sentinel", "redis-sentinel", "rediss-sentinel")
CLUSTER_SCHEMES = ("cluster", "redis+cluster", "rediss+cluster", "rediscluster", "redis-cluster")

SENTINEL_PORT = 26379
SENTINEL_FORM = "sentinel://host:26379,host2:26379/0?master_name=mymaster"

NO_CLUSTER = "Redis Cluster is not supported: set the URL of a single primary, such as redis://host:6379/0"

BROKER_VARIABLE = "CELERY_BROKER_URL"
BROKER_READ_VARIABLE = "CELERY_BROKER_READ_URL"
BROKER_WRITE_VARIABLE = "CELERY_BROKER_WRITE_URL"
RESULTS_VARIABLE = "CELERY_RESULT_BACKEND"
"""Celery's environment variables for the URLs of the broker and of the result backend."""


UNENCODED = "must be a URL: percent-encode special characters in user and password, such as # as %23"
"""Rule for URLs with a password. The error of `urlsplit` must not be shown, because the error contains the password."""


PLAIN_SCHEMES = ("redis", "rediss", "valkey", "valkeys", "amqp", "amqps", "pyamqp")
"""Schemes of broker URLs with one host. Other transports of kombu may have URLs in a format of their own."""


def is_redis_url(url: str) -> bool:
    """Return True if `url` is the URL of a Redis or Valkey deployment, whether or not the deployment is supported."""
    schemes = (*STORE_SCHEMES, *SENTINEL_SCHEMES, *FOREIGN_SENTINEL_SCHEMES, *CLUSTER_SCHEMES)
    return _scheme(url) in schemes


def is_sentinel_url(url: str) -> bool:
    """Return True if `url` contains the addresses of Sentinels."""
    return _scheme(url) in SENTINEL_SCHEMES


def _scheme(url: str) -> str:
    scheme, separator, _ = url.partition("://")
    return scheme.lower() if separator else ""


def is_encoded_url(text: str) -> bool:
    """Return True if `text` is a URL whose user and password are percent-encoded.

    A password with a slash, a question mark or a number sign divides a URL before the password's end. The result is
    then False, because the rest of the password would be shown as a part of the path.
    """
    if not _has_parts(text):
        return False
    parts = urlsplit(text)
    divides_user_info = ":" in parts.netloc and "@" not in parts.netloc and "@" in text
    return bool(parts.scheme) and not divides_user_info


def is_url(text: str) -> bool:
    """Return True if `text` is an encoded URL with at most one host."""
    return is_encoded_url(text) and _is_port(text)


def is_broker_url(url: str) -> bool:
    """Return False if kombu cannot parse `url`. kombu's error contains a part of the password.

    kombu accepts several URLs separated by semicolons, and reads a part without a scheme as a host.
    """
    return all(_scheme(part) not in PLAIN_SCHEMES or is_url(part) for part in url.split(";"))


def _has_parts(text: str) -> bool:
    try:
        return "://" in text and urlsplit(text) is not None
    except ValueError:
        return False


def store_url_mistake(url: str) -> str:
    """Return the rule that the store URL `url` violates, or "" if the URL is valid."""
    scheme = _scheme(url)
    if scheme in SENTINEL_SCHEMES:
        return _sentinel_mistake(url)
    if scheme in FOREIGN_SENTINEL_SCHEMES:
        return f"must have the form {SENTINEL_FORM}, or sentinels:// for TLS"
    if scheme in CLUSTER_SCHEMES:
        return NO_CLUSTER
    if scheme not in STORE_SCHEMES:
        return f"must begin with one of {', '.join((*STORE_SCHEMES, *SENTINEL_SCHEMES))}"
    if not _has_parts(url) or urlsplit(url).fragment:
        return UNENCODED
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    databases = [*query.get("db", []), *query.get("virtual_host", [])]
    if parts.scheme not in SOCKET_SCHEMES:
        if {",", ";"} & set(parts.netloc.rpartition("@")[2] + parts.path):
            return "must have a single host, the primary"
        if not _is_port(url):
            return "must have a port from 1 to 65535"
        databases.append(parts.path.removeprefix("/") or "0")
    if not all(database.isdecimal() for database in databases):
        return "must have a number as its database, such as redis://host:6379/0"
    return ""


def _is_port(url: str) -> bool:
    try:
        return urlsplit(url).port != 0
    except ValueError:
        return False


def redis_url(url: str) -> str:
    """Convert a store URL from Celery's format to redis-py's format, which differs for Unix sockets, Valkey and TLS."""
    for celery_scheme, scheme in (
        ("redis+socket://", "unix://"),
        ("valkeys://", "rediss://"),
        ("valkey://", "redis://"),
    ):
        if url.startswith(celery_scheme):
            url = scheme + url[len(celery_scheme) :]
    url = url.replace("virtual_host=", "db=") if url.startswith("unix://") else url
    for value in ("CERT_REQUIRED", "CERT_OPTIONAL", "CERT_NONE"):
        url = url.replace(f"ssl_cert_reqs={value}", f"ssl_cert_reqs={value.removeprefix('CERT_').lower()}")
    return url


def url_address(url: str) -> str:
    """Return `url` without user, password and options, for log lines."""
    if is_sentinel_url(url):
        return SentinelAddress.of(url).shown
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


@dataclass(frozen=True, slots=True)
class SentinelAddress:
    """Sentinels and the name of their primary, parsed from a URL of the store.

    The form is ``sentinel://user:password@host:26379,host2:26379/0?master_name=mymaster``. The user, the password and
    the database belong to the primary. ``sentinels://`` enables TLS to the primary and to the Sentinels. kombu's form,
    a list of URLs separated by semicolons, is also accepted.

    The option ``min_other_sentinels`` has the same meaning as in redis-py. The options ``ssl_…`` apply to the primary.
    The options ``sentinel_username``, ``sentinel_password``, ``sentinel_ssl`` and ``sentinel_ssl_…`` apply to the
    Sentinels. Without ``sentinel_ssl_…``, the options ``ssl_…`` apply to the primary and to the Sentinels.
    """

    sentinels: tuple[tuple[str, int], ...]
    master_name: str
    min_other_sentinels: int
    primary_url: str
    """redis-py URL with the user, password, database and TLS options of the primary. The host is a placeholder."""

    sentinel_url: str
    """redis-py URL with the user, password and TLS options of the Sentinels. The host is a placeholder."""

    shown: str
    """URL without users, passwords and options, for display."""

    @classmethod
    def of(cls, url: str) -> SentinelAddress:
        """Parse `url`.

        Raises:
            ValueError: The URL is invalid. The message is the violated rule.
        """
        first, *others = map(urlsplit, _url_parts(url))
        parts = (first, *others)
        _require_agreement(first, others)
        user_info = first.netloc.rpartition("@")[0]
        if "@" in user_info:
            raise ValueError("must have user and password once, before the first host: encode each @ in them as %40")
        sentinels = tuple(_host(host) for part in parts for host in part.netloc.rpartition("@")[2].split(","))
        database = first.path.strip("/") or "0"
        queries = {part.query for part in parts if part.query}
        if not database.isdecimal() or len(queries) > 1 or any(part.fragment for part in parts):
            raise ValueError(f"must have a number as its database, and its options once: {SENTINEL_FORM}")
        options = _options("".join(queries))
        master_name = options.pop("master_name", "")
        if not master_name:
            raise ValueError(f"must have the option master_name: {SENTINEL_FORM}")
        least = options.pop("min_other_sentinels", "0")
        if not least.isdecimal():
            raise ValueError("must have a number as its min_other_sentinels")
        of_primary, of_sentinels = _options_of_each(options, is_primary_tls=first.scheme == "sentinels")
        hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in sentinels)
        return cls(
            sentinels,
            master_name,
            int(least),
            _url(of_primary, f"{user_info}@" if user_info else "", database),
            _url(of_sentinels),
            f"{first.scheme}://{hosts}/{database}?{urlencode({'master_name': master_name})}",
        )


def _url_parts(url: str) -> list[str]:
    return re.split(r";(?=sentinels?://)", url)


def with_sentinel_options(url: str, options: Mapping[str, Any]) -> str:
    """Add the values that kombu reads from the transport `options` to the query of kombu's Sentinel `url`.

    Timeouts are omitted, because the store client sets its own timeouts.
    """
    names = {name: options[name] for name in ("master_name", "min_other_sentinels") if options.get(name)}
    of_sentinels = {
        f"sentinel_{name}": value
        for name, value in (options.get("sentinel_kwargs") or {}).items()
        if not name.startswith("socket_")
    }
    query = urlencode({name: value for name, value in (names | of_sentinels).items() if value is not None})
    return f"{url}{'&' if urlsplit(url).query else '?'}{query}" if query else url


def _sentinel_mistake(url: str) -> str:
    if not all(map(_has_parts, _url_parts(url))):
        return UNENCODED
    try:
        SentinelAddress.of(url)
    except ValueError as e:
        return str(e)
    return ""


def _require_agreement(first: SplitResult, others: list[SplitResult]) -> None:
    """Check that no other URL differs from the first URL in scheme, user, password or database."""
    for part in others:
        user_info = part.netloc.rpartition("@")[0]
        same_user = user_info in ("", first.netloc.rpartition("@")[0])
        if not same_user or part.path.strip("/") not in ("", first.path.strip("/")) or part.scheme != first.scheme:
            raise ValueError("must have the same scheme, user, password and database in all its URLs")


def _host(text: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = "", 0
    if not host or port == 0 or parts.netloc != text:
        raise ValueError("must have hosts separated by commas, with ports from 1 to 65535")
    return host, port or SENTINEL_PORT


def _options(query: str) -> dict[str, str]:
    pairs = parse_qsl(query, keep_blank_values=True)
    options = dict(pairs)
    if len(options) < len(pairs):
        raise ValueError("must have each option only once")
    names = ("master_name", "min_other_sentinels", "sentinel_username", "sentinel_password", "sentinel_ssl")
    unknown = [name for name in options if name not in names and not name.startswith(("ssl_", "sentinel_ssl_"))]
    if unknown:
        raise ValueError(f"must not have the option {unknown[0]}; known: {', '.join(names)}, ssl_…, sentinel_ssl_…")
    return options


def _options_of_each(options: Mapping[str, str], *, is_primary_tls: bool) -> tuple[dict[str, str], dict[str, str]]:
    """Split the options of a URL into redis-py's options for the primary and for the Sentinels. ``ssl`` enables TLS."""
    words = {"true": True, "1": True, "false": False, "0": False, "": is_primary_tls}
    is_sentinel_tls = words.get(options.get("sentinel_ssl", "").lower())
    if is_sentinel_tls is None:
        raise ValueError("must have true or false as its sentinel_ssl")
    of_primary = {name: value for name, value in options.items() if name.startswith("ssl_")}
    own = {name.removeprefix("sentinel_"): options[name] for name in options if name.startswith("sentinel_")}
    own_tls = {name: value for name, value in own.items() if name.startswith("ssl_")}
    if (of_primary and not is_primary_tls) or (own_tls and not is_sentinel_tls):
        raise ValueError("must begin with sentinels:// to use ssl_…, and have sentinel_ssl=true to use sentinel_ssl_…")
    user: dict[str, str] = {name: own[name] for name in ("username", "password") if name in own}
    of_sentinels: dict[str, str] = {"ssl": "1", **(own_tls or of_primary), **user} if is_sentinel_tls else user
    return ({"ssl": "1", **of_primary} if is_primary_tls else {}), of_sentinels


def _url(options: dict[str, str], user_info: str = "", database: str = "0") -> str:
    scheme = "rediss" if options.pop("ssl", "") else "redis"
    return redis_url(f"{scheme}://{user_info}sentinel/{database}?{urlencode(options)}")


ARCHIVE_DRIVERS = ("postgresql+asyncpg", "mysql+aiomysql", "mariadb+aiomysql", "sqlite+aiosqlite")
ARCHIVE_RULE = f"one of {', '.join(ARCHIVE_DRIVERS)}, then :// and a database that all processes can reach"


def is_archive_url(url: str) -> bool:
    """Return True if `url` is the URL of a persistent database and has an asynchronous driver."""
    driver, separator, rest = url.partition("://")
    database = rest.partition("?")[0].partition("/")[2]
    return driver in ARCHIVE_DRIVERS and bool(separator) and database not in ("", ":memory:")


def archive_place(url: str | None) -> str:
    """Return the URL of the archive without driver, credentials and options, for comparisons between processes.

    Returns:
        The shortened URL, or "" if `url` is None.
    """
    if url is None:
        return ""
    parts = urlsplit(url)
    return f"{parts.scheme.partition('+')[0]}://{parts.netloc.rpartition('@')[2]}{parts.path}"
