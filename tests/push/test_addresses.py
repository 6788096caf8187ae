"""Addresses to which webhooks may connect."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2a_celery.push.network import is_allowed, is_within, parse_address

PUBLIC = ["8.8.8.8", "1.1.1.1", "100.63.255.255", "172.32.0.1", "192.169.0.1", "2606:4700:4700::1111", "2a00:1450::1"]

NOT_PUBLIC = [
    *(
        "0.0.0.0",
        "0.1.2.3",
        "10.0.0.1",
        "10.255.255.255",
        "127.0.0.1",
        "127.255.255.254",
        "172.16.0.1",
        "172.31.255.255",
    ),
    *("192.168.0.1", "192.0.0.1", "192.0.2.1", "198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.9"),
    *("100.64.0.1", "100.127.255.255", "192.88.99.1", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255"),
    # metadata services of clouds
    *("169.254.169.254", "169.254.170.2", "100.100.100.200", "192.0.0.192", "168.63.129.16", "fd00:ec2::254"),
    *("fd20:ce::254", "fe80::a9fe:a9fe"),
    # IPv6
    *("::", "::1", "fe80::1", "fec0::1", "fc00::1", "fd00::1", "ff02::1", "ff0e::1", "2001:db8::1", "3fff::1"),
    *("100::1", "64:ff9b:1::1", "4000::1", "5f00::1", "2001:2::1", "2001:10::1"),
]

IPV4_INSIDE = {
    "::ffff:{}": "mapped",
    "::{}": "compatible",
    "::ffff:0:{}": "translated",
    "64:ff9b::{}": "NAT64",
    "64:ff9b:1::{}": "local NAT64",
}


@pytest.mark.parametrize("text", PUBLIC)
def test_public_addresses_are_allowed(text: str) -> None:
    assert is_allowed(ip_address(text))


@pytest.mark.parametrize("text", NOT_PUBLIC)
def test_no_other_is(text: str) -> None:
    assert not is_allowed(ip_address(text))


@pytest.mark.parametrize("form", IPV4_INSIDE, ids=IPV4_INSIDE.values())
@pytest.mark.parametrize("inside", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "100.100.100.200", "0.0.0.0"])
def test_ipv4_inside_ipv6_hides_nothing(form: str, inside: str) -> None:
    assert not is_allowed(ip_address(form.format(inside)))


@pytest.mark.parametrize("text", ["2002:7f00:1::", "2002:808:808::", "2001:0:4136:e378:8000:63bf:80ff:fffe"])
def test_tunnels_are_not_public_wherever_they_lead(text: str) -> None:
    """6to4 and Teredo send packets through unknown relays."""
    assert not is_allowed(ip_address(text))


def test_a_network_without_ipv4_reaches_the_public_part_of_it() -> None:
    assert is_allowed(ip_address("64:ff9b::8.8.8.8"))
    assert is_allowed(ip_address("::ffff:8.8.8.8"))


def test_an_allowed_address_is_allowed_in_each_form() -> None:
    networks = [ip_network("10.0.0.0/8"), ip_network("::1/128")]

    for text in ("10.1.2.3", "::ffff:10.1.2.3", "64:ff9b::10.1.2.3", "::1"):
        assert is_allowed(ip_address(text), networks)
        assert is_within(ip_address(text), networks)
    for text in ("127.0.0.1", "192.168.0.1", "::ffff:127.0.0.1", "::2", "169.254.169.254", "0.0.0.0"):
        assert not is_allowed(ip_address(text), networks)
    assert is_allowed(ip_address("8.8.8.8"), networks)
    assert not is_within(ip_address("8.8.8.8"), networks)


@given(st.ip_addresses())
def test_special_addresses_of_python_s_ipaddress_are_never_allowed(address) -> None:  # type: ignore[no-untyped-def]
    special = address.is_private or address.is_multicast or address.is_loopback or address.is_link_local
    if special and getattr(address, "ipv4_mapped", None) is None:
        assert not is_allowed(address)


@pytest.mark.parametrize(
    "text", ["fe80::1%eth0", "2606::1%1", "", "127.1", "0x7f000001", "2130706433", "a.example", "::g"]
)
def test_only_the_usual_form_is_an_address(text: str) -> None:
    assert parse_address(text) is None
