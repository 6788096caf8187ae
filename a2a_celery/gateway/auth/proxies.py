"""Mutual TLS that ends at a proxy: the proxy verifies the client's certificate, and says in a header whose it is."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from a2a.types import MutualTlsSecurityScheme, SecurityScheme

from .identity import Identity, is_owner
from .schemes import Presented, Refused, Why

OWN_SITE = ("same-origin", "none")
"""Who made a browser ask: a page of ours, or its user."""


class ProxyIdentity:
    """Believes `header` of whoever is connected from one of `networks`; from anybody else the request is refused.

    It is never just passed over: where it comes from elsewhere, a proxy is not in front, or lets it through.

    A browser shows its user's certificate whoever's page makes it ask: what it says is another site's is refused.
    Source: Fetch Metadata Request Headers (W3C), ``Sec-Fetch-Site``.
    """

    name = "mutualTls"
    challenge = "ClientCertificate"

    def __init__(self, header: str, networks: Sequence[str]) -> None:
        self._header = header
        self._networks = tuple(ip_network(network) for network in networks)

    def described(self) -> SecurityScheme:
        """Mutual TLS."""
        return SecurityScheme(mtls_security_scheme=MutualTlsSecurityScheme())

    async def identify(self, presented: Presented) -> Identity | None:
        """Whose certificate it was."""
        self.require_believable(presented)
        given = presented.only(self._header)
        if given is None:
            return None
        if presented.values("sec-fetch-site") and presented.only("sec-fetch-site") not in OWN_SITE:
            raise Refused(Why.OTHER_SITE)
        if not is_owner(given):
            raise Refused(Why.OWNER)
        return Identity(given)

    def require_believable(self, presented: Presented) -> None:
        """Raises Refused if the header is there, and comes from elsewhere."""
        if presented.values(self._header.lower()) and not _is_in(presented.peer, self._networks):
            raise Refused(Why.PROXY)


def _is_in(peer: str | None, networks: Sequence[IPv4Network | IPv6Network]) -> bool:
    try:
        address = ip_address(peer or "")
    except ValueError:  # a socket of this machine has no address
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return any(address in network for network in networks)
