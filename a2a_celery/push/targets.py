"""Where a push-notification config points, judged when it is set: by its text alone, without asking anybody.

What a name leads to is judged by `network`, which asks. Messages are for the client that sent the config: they say what
to change, and nothing that the client didn't send itself.
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

from .addresses import Address, Network, is_allowed, is_within, read_address
from .signature import secret_of

LONGEST_URL = 2048
LONGEST_VALUE = 8192
"""Characters of a token or of credentials; a signed token with many claims has a few thousand."""

REFUSED_PORTS = {
    22: "SSH", 23: "Telnet", 25: "SMTP", 53: "DNS", 110: "POP3", 143: "IMAP", 389: "LDAP", 445: "SMB", 465: "SMTP",
    587: "SMTP", 636: "LDAP", 993: "IMAP", 995: "POP3", 1433: "SQL Server", 1521: "Oracle", 2049: "NFS",
    2181: "ZooKeeper", 2375: "Docker", 2376: "Docker", 2379: "etcd", 3306: "MySQL", 3389: "RDP", 5432: "PostgreSQL",
    5671: "AMQP", 5672: "AMQP", 6379: "Redis", 6380: "Redis", 9092: "Kafka", 9200: "Elasticsearch", 10250: "kubelet",
    11211: "Memcached", 26379: "Redis", 27017: "MongoDB",
}  # fmt: skip
"""Ports of servers that receive no webhooks, and some of which do as they are told by whoever connects."""

_DEFAULT_PORTS = {"https": 443, "http": 80}
_CONTROL = re.compile(r"[\x00-\x20\x7f-\xa0\u2028\u2029]")
_AUTHORITY = re.compile(r"(\[(?P<ipv6>[^\[\]]*)\]|(?P<name>[^\[\]:]*))(:(?P<port>[0-9]{0,5}))?")
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_VALUE = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")
_SCHEME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}")
_LOOPBACK = (IPv4Address("127.0.0.1"), IPv6Address("::1"))


class TargetRefused(ValueError):
    """A config can't be taken as it is. `field` is the one that is wrong, as the specification names it in JSON; the
    text says what to change, to the client that sent it."""

    def __init__(self, field: str, rule: str) -> None:
        super().__init__(f"{field}: {rule}")
        self.field = field
        self.rule = rule


@dataclass(frozen=True, slots=True)
class Target:
    """A webhook's URL in its one form: ASCII, host in lower case, addresses as dotted quads or without zeros."""

    scheme: str
    host: str
    """A name, or an address; IPv6 without brackets."""
    port: int
    path: str
    """With its query; begins with a slash."""
    address: Address | None
    """The host, if it is an address."""

    @property
    def authority(self) -> str:
        """The host, and the port unless it is the scheme's own: what the header Host says."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path}"


def check_config(config: TaskPushNotificationConfig, allow_networks: Sequence[Network] = ()) -> Target:
    """The target of `config`, whose token and credentials can be sent as headers.

    Raises:
        TargetRefused: something of it can't be taken.
    """
    target = parse_target(config.url, allow_networks)
    auth = config.authentication
    _check_value("token", config.token)
    _check_secret(config.token)
    _check_value("authentication.credentials", auth.credentials)
    if auth.scheme and not _SCHEME.fullmatch(auth.scheme):
        raise TargetRefused("authentication.scheme", "must be the name of an HTTP authentication scheme, as Bearer is")
    if auth.credentials and not auth.scheme:
        raise TargetRefused("authentication.scheme", "must say what the credentials are, for instance Bearer")
    return target


def parse_target(url: str, allow_networks: Sequence[Network] = ()) -> Target:
    """The target that `url` names. One with ``http`` and a name may be refused only when it is known where that leads.

    Raises:
        TargetRefused: it is no URL of a webhook, or leads where none may be.
    """
    parts = _split(url)
    if parts.scheme not in _DEFAULT_PORTS:
        raise TargetRefused("url", "must begin with https://")
    if "@" in parts.netloc:
        raise TargetRefused("url", "must hold no user or password: put credentials into authentication")
    if not parts.path.isascii() or not parts.query.isascii():
        raise TargetRefused("url", "characters outside ASCII must be percent-encoded")
    authority = _AUTHORITY.fullmatch(parts.netloc)
    if authority is None:
        raise TargetRefused("url", "its host and port can't be read")
    port = int(authority["port"] or _DEFAULT_PORTS[parts.scheme])
    if port in REFUSED_PORTS or not 1 <= port <= 65535:
        raise TargetRefused("url", f"port {port} is not one that webhooks are sent to")
    host, address = _read_ipv6(authority["ipv6"]) if authority["ipv6"] is not None else _read_host(authority["name"])
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    target = Target(parts.scheme, host, port, path, address)
    _judge(target, allow_networks)
    return target


def _split(url: str) -> SplitResult:
    if not url:
        raise TargetRefused("url", "is missing")
    if len(url) > LONGEST_URL:
        raise TargetRefused("url", f"must have at most {LONGEST_URL} characters")
    if _CONTROL.search(url) or "\\" in url:
        raise TargetRefused("url", "must hold no spaces, line breaks, control characters or backslashes")
    if "#" in url:
        raise TargetRefused("url", "must have no fragment: leave out # and what follows")
    try:
        return urlsplit(url)
    except ValueError:  # brackets that don't match
        raise TargetRefused("url", "its host and port can't be read") from None


def _read_ipv6(text: str) -> tuple[str, Address]:
    """What stands in brackets, in its one form."""
    address = read_address(text)
    if not isinstance(address, IPv6Address):
        raise TargetRefused("url", "its host is no IPv6 address, or one with a zone")
    return address.compressed, address


def _read_host(text: str) -> tuple[str, Address | None]:
    """A host in its one form, and the IPv4 address that it is, however that was written."""
    if not text:
        raise TargetRefused("url", "must name a host")
    name = _ascii(text).removesuffix(".")
    labels = name.split(".")
    if _NUMBER.fullmatch(labels[-1]):  # then it is an IPv4 address, or nothing: URL standard, "ends in a number"
        try:
            address = IPv4Address(socket.inet_aton(name))  # also decimal, octal, hexadecimal, and with parts left out
        except OSError:
            raise TargetRefused("url", "its host is no IPv4 address") from None
        return str(address), address
    if len(name) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise TargetRefused("url", "its host is no name of a host")
    return name, None


def _ascii(host: str) -> str:
    if host.isascii():
        return host.lower()
    try:
        return idna.encode(host, uts46=True).decode("ascii").lower()
    except (idna.IDNAError, UnicodeError):
        raise TargetRefused("url", "its host is no internationalised name of a host (IDNA)") from None


def _judge(target: Target, allow_networks: Sequence[Network]) -> None:
    """What can be said without asking where a name leads."""
    secure = target.scheme == "https"
    if target.address is None and not _is_localhost(target.host):
        if not secure and not allow_networks:
            raise TargetRefused("url", "must begin with https://")
        return
    addresses = _LOOPBACK if target.address is None else (target.address,)
    if not any(is_allowed(address, allow_networks) for address in addresses):
        raise TargetRefused("url", "its host is not public: webhooks are sent to public addresses only")
    if not secure and not any(is_within(address, allow_networks) for address in addresses):
        raise TargetRefused("url", "must begin with https://")


def _is_localhost(host: str) -> bool:
    """Whether it is a name for this host, whoever is asked (RFC 6761)."""
    return host == "localhost" or host.endswith(".localhost")


def _check_value(field: str, value: str) -> None:
    if len(value) > LONGEST_VALUE:
        raise TargetRefused(field, f"must have at most {LONGEST_VALUE} characters")
    if value and not _VALUE.fullmatch(value):
        raise TargetRefused(field, "must be printable ASCII, without line breaks, and not begin or end with a space")


def _check_secret(token: str) -> None:
    try:
        secret_of(token)
    except ValueError as e:
        raise TargetRefused("token", str(e)) from None
