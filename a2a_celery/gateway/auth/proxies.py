"""Mutual TLS that ends at a proxy, which verifies the client's certificate and sets its subject in a header."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from a2a.types import MutualTlsSecurityScheme, SecurityScheme

from .identity import Identity, is_owner
from .schemes import CredentialsRefused, PresentedCredentials, RefusalReason

OWN_SITE = ("same-origin", "none")
"""Values of ``Sec-Fetch-Site`` for a page of this origin or the user."""


class ProxyIdentity:
    """Accepts the identity in `header` from the proxies in `networks`.

    The header from any other address is refused, not ignored: a proxy is missing, or lets a client's header through.

    A browser presents its user's certificate for the pages of every site, so requests that it marks as another site's
    are refused. Source: Fetch Metadata Request Headers (W3C), ``Sec-Fetch-Site``.
    """

    name = "mutualTls"
    challenge = "ClientCertificate"

    def __init__(self, header: str, networks: Sequence[str]) -> None:
        self._header = header
        self._networks = tuple(ip_network(network) for network in networks)

    def security_scheme(self) -> SecurityScheme:
        """Return the scheme of mutual TLS."""
        return SecurityScheme(mtls_security_scheme=MutualTlsSecurityScheme())

    async def identify(self, presented: PresentedCredentials) -> Identity | None:
        """Return the subject of the certificate, or None without the header."""
        self.require_trusted_proxy(presented)
        given = presented.only(self._header)
        if given is None:
            return None
        if presented.values("sec-fetch-site") and presented.only("sec-fetch-site") not in OWN_SITE:
            raise CredentialsRefused(RefusalReason.OTHER_SITE)
        if not is_owner(given):
            raise CredentialsRefused(RefusalReason.OWNER)
        return Identity(given)

    def require_trusted_proxy(self, presented: PresentedCredentials) -> None:
        """Raise CredentialsRefused if the header is present and the peer is not a trusted proxy."""
        if presented.values(self._header.lower()) and not _is_in(presented.peer, self._networks):
            raise CredentialsRefused(RefusalReason.PROXY)


def _is_in(peer: str | None, networks: Sequence[IPv4Network | IPv6Network]) -> bool:
    try:
        address = ip_address(peer or "")
    except ValueError:  # a socket of this machine has no address
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return any(address in network for network in networks)
