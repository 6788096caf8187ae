"""IP addresses that webhooks may be sent to: public addresses, and networks that the deployment allows.

An IPv6 address that embeds an IPv4 address counts as the IPv4 address.

Sources: the IANA registries of special-purpose addresses (RFC 6890); the documentation of cloud providers on metadata.
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

PUBLIC_IPV6 = IPv6Network("2000::/3")
"""The only allocated part of IPv6. Unique local, link-local, site-local and multicast addresses are outside."""

NAT64 = IPv6Network("64:ff9b::/96")
"""Prefix of IPv6 addresses whose last 32 bits are an IPv4 address (RFC 6052)."""

_NOT_PUBLIC: tuple[Network, ...] = tuple(
    ip_network(text)
    for text in (
        "0.0.0.0/8",  # this host
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # carrier-grade NAT; metadata of Alibaba Cloud, 100.100.100.200
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # Azure platform, in public address space
        "169.254.0.0/16",  # link-local; cloud metadata, 169.254.169.254 and 169.254.170.2
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments; metadata of Oracle Cloud, 192.0.0.192
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
        "240.0.0.0/4",  # reserved and broadcast
        "2001::/23",  # protocol assignments; Teredo, ORCHID
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4: an IPv4 address behind an unknown relay
        "2620:4f:8000::/48",  # AS112
        "3fff::/20",  # documentation
    )
)


def parse_address(text: str) -> Address | None:
    """Return the address that `text` is in its usual form, or None. An address with a zone returns None."""
    try:
        return None if "%" in text else ip_address(text)
    except ValueError:
        return None


def is_within(address: Address, networks: Sequence[Network]) -> bool:
    """Return True if `address`, or the IPv4 address that it embeds, is in one of `networks`."""
    return any(form in network for form in (address, _embedded_ipv4(address)) for network in networks)


def is_allowed(address: Address, allow_networks: Sequence[Network] = ()) -> bool:
    """Return True if `address` is public or in one of `allow_networks`."""
    return is_within(address, allow_networks) or _is_public(_embedded_ipv4(address))


def unmap_address(address: Address) -> Address:
    """Return the IPv4 address of an IPv4-mapped IPv6 address, and any other address unchanged.

    A host without IPv6 can connect to the result too.
    """
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped


def network_of(address: Address) -> str:
    """Return the network that likely has one operator: the /24 of an IPv4 address, or the /64 of an IPv6 address."""
    address = _embedded_ipv4(address)
    return str(ip_network((address, 24 if address.version == 4 else 64), strict=False))


def _is_public(address: Address) -> bool:
    if isinstance(address, IPv6Address) and address not in PUBLIC_IPV6:
        return False
    return not any(address in network for network in _NOT_PUBLIC)


def _embedded_ipv4(address: Address) -> Address:
    """Return the IPv4 address that `address` embeds, and any other address unchanged."""
    if isinstance(address, IPv6Address) and address in NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return unmap_address(address)
