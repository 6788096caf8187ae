"""URLs of the store: which are served, and what is wrong with the others."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

STORE_SCHEMES = ("redis", "rediss", "unix", "redis+socket", "valkey", "valkeys")
SOCKET_SCHEMES = ("unix", "redis+socket")

SENTINEL_SCHEMES = ("sentinel", "sentinels", "redis+sentinel", "rediss+sentinel")
CLUSTER_SCHEMES = ("cluster", "redis+cluster", "rediss+cluster", "rediscluster", "redis-cluster")

NO_SENTINEL = (
    "Redis Sentinel is not supported: name the primary itself, such as redis://host:6379/0, "
    "or an address that always leads to it"
)
NO_CLUSTER = "Redis Cluster is not supported: name a single primary, such as redis://host:6379/0"


def is_redis_url(url: str) -> bool:
    """Return whether `url` names Redis or Valkey, in a deployment that is served or not."""
    return urlsplit(url).scheme in (*STORE_SCHEMES, *SENTINEL_SCHEMES, *CLUSTER_SCHEMES)


def store_url_mistake(url: str) -> str:
    """Return the rule that `url` breaks, or "" if it breaks none."""
    parts = urlsplit(url)
    if parts.scheme in SENTINEL_SCHEMES:
        return NO_SENTINEL
    if parts.scheme in CLUSTER_SCHEMES:
        return NO_CLUSTER
    if parts.scheme not in STORE_SCHEMES:
        return f"must begin with one of {', '.join(STORE_SCHEMES)}"
    query = parse_qs(parts.query)
    databases = [*query.get("db", []), *query.get("virtual_host", [])]
    if parts.scheme not in SOCKET_SCHEMES:
        if {",", ";"} & set(parts.netloc.rpartition("@")[2] + parts.path):
            return "must name one server: the primary"
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
    """`url` as redis-py reads it; Celery's spellings of a unix socket and of Valkey are understood too."""
    for theirs, ours in (("redis+socket://", "unix://"), ("valkeys://", "rediss://"), ("valkey://", "redis://")):
        if url.startswith(theirs):
            url = ours + url[len(theirs) :]
    url = url.replace("virtual_host=", "db=") if url.startswith("unix://") else url
    for theirs in ("CERT_REQUIRED", "CERT_OPTIONAL", "CERT_NONE"):
        url = url.replace(f"ssl_cert_reqs={theirs}", f"ssl_cert_reqs={theirs.removeprefix('CERT_').lower()}")
    return url
