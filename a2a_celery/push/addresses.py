"""Which IP addresses webhooks are sent to: public ones, and the networks that the deployment allows.

An address is judged as what it leads to: an IPv4 address that is written inside an IPv6 one counts as itself.
Sources: the IANA registries of special-purpose addresses (RFC 6890); the clouds' own documentation for their metadata.
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

PUBLIC_IPV6 = IPv6Network("2000::/3")
"""The only part of IPv6 that is given out; unique local, link-local, site-local and multicast are outside."""

NAT64 = IPv6Network("64:ff9b::/96")
"""How a network without IPv4 reaches an IPv4 address: the last 32 bits are it (RFC 6052)."""

_NOT_PUBLIC: tuple[Network, ...] = tuple(
    ip_network(text)
    for text in (
        "0.0.0.0/8",  # this host
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # behind a carrier's NAT; Alibaba's metadata, 100.100.100.200
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # Azure's platform, in public space
        "169.254.0.0/16",  # link-local; cloud metadata, 169.254.169.254 and 169.254.170.2
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments; Oracle's metadata, 192.0.0.192
        "192.0.2.0/24",  # documentation
        "192.31.196.0/24",  # AS112
        "192.52.193.0/24",  # AMT
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",  # private
        "192.175.48.0/24",  # AS112
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
        "2001::/23",  # protocol assignments; Teredo, ORCHID
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4: an IPv4 address, and a relay nobody knows
        "2620:4f:8000::/48",  # AS112
        "3fff::/20",  # documentation
    )
)


def read_address(text: str) -> Address | None:
    """The address that `text` is, in its usual form; None for anything else, also for one with a zone."""
    try:
        return None if "%" in text else ip_address(text)
    except ValueError:
        return None


def is_within(address: Address, networks: Sequence[Network]) -> bool:
    """Whether `address`, or the IPv4 address it leads to, is in one of `networks`."""
    return any(form in network for form in (address, _led_to(address)) for network in networks)


def is_allowed(address: Address, allow_networks: Sequence[Network] = ()) -> bool:
    """Whether a webhook may be sent to `address`: it is public, or in one of `allow_networks`."""
    return is_within(address, allow_networks) or _is_public(_led_to(address))


def without_mapping(address: Address) -> Address:
    """The IPv4 address that a mapped IPv6 one is: a host without IPv6 can connect to that too."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped


def _is_public(address: Address) -> bool:
    if isinstance(address, IPv6Address) and address not in PUBLIC_IPV6:
        return False
    return not any(address in network for network in _NOT_PUBLIC)


def _led_to(address: Address) -> Address:
    """The IPv4 address that a connection to `address` ends at, if it is an IPv6 address for one."""
    if isinstance(address, IPv6Address) and address in NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return without_mapping(address)
