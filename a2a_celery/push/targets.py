"""Validation of the target of a push-notification config when the config is set. Host names are not resolved.

``network`` checks the addresses of a host name for each connection. Error messages tell the client that sent the config
what to change, and reveal only what the client has sent.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from urllib.parse import SplitResult, urlsplit

import idna
from a2a.types import TaskPushNotificationConfig

from .network import Address, Network, is_allowed, is_within, parse_address
from .request import parse_secret

MAX_URL_LENGTH = 2048
MAX_VALUE_LENGTH = 8192
"""Maximum length of a token or of credentials, in characters. A signed token with many claims has a few thousand
characters."""

REFUSED_PORTS = {
    22: "SSH", 23: "Telnet", 25: "SMTP", 53: "DNS", 110: "POP3", 143: "IMAP", 389: "LDAP", 445: "SMB", 465: "SMTP",
    587: "SMTP", 636: "LDAP", 993: "IMAP", 995: "POP3", 1433: "SQL Server", 1521: "Oracle", 2049: "NFS",
    2181: "ZooKeeper", 2375: "Docker", 2376: "Docker", 2379: "etcd", 3306: "MySQL", 3389: "RDP", 5432: "PostgreSQL",
    5671: "AMQP", 5672: "AMQP", 6379: "Redis", 6380: "Redis", 9092: "Kafka", 9200: "Elasticsearch", 10250: "kubelet",
    11211: "Memcached", 26379: "Redis", 27017: "MongoDB",
}  # fmt: skip
"""Ports of services that are not webhooks. Some of these services execute commands from any client."""

_DEFAULT_PORTS = {"https": 443, "http": 80}
_CONTROL = re.compile(r"[\x00-\x20\x7f-\xa0\u2028\u2029]")
_AUTHORITY = re.compile(r"(\[(?P<ipv6>[^\[\]]*)\]|(?P<name>[^\[\]:]*))(:(?P<port>[0-9]{0,5}))?")
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_VALUE = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")
_SCHEME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}")
_LOOPBACK = (IPv4Address("127.0.0.1"), IPv6Address("::1"))


class TargetRefused(ValueError):
    """Error for an invalid config. The message tells the client that sent the config what to change.

    Attributes:
        field: Name of the invalid field in the JSON of the specification.
        rule: Rule that the field violates.
        private_host: Host that `allow_networks` would have to contain, for operators with access to the logs, or "".
    """

    def __init__(self, field: str, rule: str, private_host: str = "") -> None:
        super().__init__(f"{field}: {rule}")
        self.field = field
        self.rule = rule
        self.private_host = private_host


@dataclass(frozen=True, slots=True)
class Target:
    """Normalized URL of a webhook, in ASCII.

    Attributes:
        host: Name in lower case, or address in canonical form. An IPv6 address has no brackets.
        path: Path with the query. The path begins with a slash.
        address: Address of the host, or None if the host is a name.
    """

    scheme: str
    host: str
    port: int
    path: str
    address: Address | None

    @property
    def authority(self) -> str:
        """Value of the header Host: the host, and the port unless it is the default port of the scheme."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path}"


def check_config(config: TaskPushNotificationConfig, allow_networks: Sequence[Network] = ()) -> Target:
    """Validate `config` and return its target.

    Raises:
        TargetRefused: The URL, the token or the authentication is invalid.
    """
    target = parse_target(config.url, allow_networks)
    auth = config.authentication
    _check_value("token", config.token)
    _check_secret(config.token)
    _check_value("authentication.credentials", auth.credentials)
    if auth.scheme and not _SCHEME.fullmatch(auth.scheme):
        raise TargetRefused("authentication.scheme", "must be an HTTP authentication scheme, for example Bearer")
    if auth.credentials and not auth.scheme:
        raise TargetRefused("authentication.scheme", "must name the scheme of the credentials, for example Bearer")
    return target


def parse_target(url: str, allow_networks: Sequence[Network] = ()) -> Target:
    """Return the target of `url`. The addresses of a host name are checked later, for each connection.

    Raises:
        TargetRefused: `url` is not a valid URL of a webhook, or its host is forbidden.
    """
    parts = _split(url)
    if parts.scheme not in _DEFAULT_PORTS:
        raise TargetRefused("url", "must begin with https://")
    if "@" in parts.netloc:
        raise TargetRefused("url", "must contain no user or password: use authentication for credentials")
    if not parts.path.isascii() or not parts.query.isascii():
        raise TargetRefused("url", "characters outside ASCII must be percent-encoded")
    authority = _AUTHORITY.fullmatch(parts.netloc)
    if authority is None:
        raise TargetRefused("url", "must have a valid host and port")
    port = int(authority["port"] or _DEFAULT_PORTS[parts.scheme])
    if port in REFUSED_PORTS or not 1 <= port <= 65535:
        raise TargetRefused("url", f"port {port} is not allowed for webhooks")
    host, address = _read_ipv6(authority["ipv6"]) if authority["ipv6"] is not None else _read_host(authority["name"])
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    target = Target(parts.scheme, host, port, path, address)
    _check_host(target, allow_networks)
    return target


def _split(url: str) -> SplitResult:
    if not url:
        raise TargetRefused("url", "is required")
    if len(url) > MAX_URL_LENGTH:
        raise TargetRefused("url", f"must have at most {MAX_URL_LENGTH} characters")
    if _CONTROL.search(url) or "\\" in url:
        raise TargetRefused("url", "must contain no spaces, line breaks, control characters or backslashes")
    if "#" in url:
        raise TargetRefused("url", "must have no fragment: remove # and the text after it")
    try:
        return urlsplit(url)
    except ValueError:  # unbalanced brackets
        raise TargetRefused("url", "must have a valid host and port") from None


def _read_ipv6(text: str) -> tuple[str, Address]:
    address = parse_address(text)
    if not isinstance(address, IPv6Address):
        raise TargetRefused("url", "must have a valid IPv6 address without a zone in brackets")
    return address.compressed, address


def _read_host(text: str) -> tuple[str, Address | None]:
    """Return the normalized host, and its address, or None if the host is a name.

    An IPv4 address may have any notation, such as decimal or hexadecimal.
    """
    if not text:
        raise TargetRefused("url", "must have a host")
    name = _ascii(text).removesuffix(".")
    labels = name.split(".")
    if _NUMBER.fullmatch(labels[-1]):  # must be an IPv4 address; see the URL standard, "ends in a number"
        try:
            address = IPv4Address(socket.inet_aton(name))  # accepts decimal, octal, hexadecimal and abbreviated forms
        except OSError:
            raise TargetRefused("url", "must have a valid IPv4 address") from None
        return str(address), address
    if len(name) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise TargetRefused("url", "must have a valid host name")
    return name, None


def _ascii(host: str) -> str:
    if host.isascii():
        return host.lower()
    try:
        return idna.encode(host, uts46=True).decode("ascii").lower()
    except (idna.IDNAError, UnicodeError):
        raise TargetRefused("url", "must have a valid internationalized host name (IDNA)") from None


def _check_host(target: Target, allow_networks: Sequence[Network]) -> None:
    """Check the scheme and the address of the target, without resolving a host name."""
    secure = target.scheme == "https"
    if target.address is None and not _is_localhost(target.host):
        if not secure and not allow_networks:
            raise TargetRefused("url", "must begin with https://")
        return
    addresses = _LOOPBACK if target.address is None else (target.address,)
    if not any(is_allowed(address, allow_networks) for address in addresses):
        rule = "must have a public host: webhooks are sent to public addresses only"
        raise TargetRefused("url", rule, private_host=target.host)
    if not secure and not any(is_within(address, allow_networks) for address in addresses):
        raise TargetRefused("url", "must begin with https://")


def _is_localhost(host: str) -> bool:
    """Return True if `host` always resolves to a loopback address (RFC 6761)."""
    return host == "localhost" or host.endswith(".localhost")


def _check_value(field: str, value: str) -> None:
    if len(value) > MAX_VALUE_LENGTH:
        raise TargetRefused(field, f"must have at most {MAX_VALUE_LENGTH} characters")
    if value and not _VALUE.fullmatch(value):
        raise TargetRefused(field, "must be printable ASCII without line breaks, and without a space at either end")


def _check_secret(token: str) -> None:
    try:
        parse_secret(token)
    except ValueError as e:
        raise TargetRefused("token", str(e)) from None
