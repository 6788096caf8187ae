"""All the schemes of a deployment: any one of them is enough."""

from __future__ import annotations

from collections.abc import Sequence

from .identity import Identity
from .proxies import ProxyIdentity
from .schemes import Presented, Refused, Scheme, Why
from .tokens import BearerTokens

REALM = "a2a"


class Authenticator:
    """Says who a request is from. The first of `schemes` that finds credentials of its own decides, for good or ill.

    Bearer tokens and API keys come before what a proxy says: a mesh puts its header on every request, also on one that
    brings its user's token along.
    """

    def __init__(self, schemes: Sequence[Scheme]) -> None:
        self.schemes = tuple(schemes)

    async def identify(self, presented: Presented) -> Identity:
        """Who it is.

        Raises:
            Refused: nobody we know.
            KeysUnavailable: it can't be known now.
        """
        for scheme in self.schemes:
            if isinstance(scheme, ProxyIdentity):
                scheme.require_believable(presented)
        for scheme in self.schemes:
            found = await scheme.identify(presented)
            if found is not None:
                return found
        raise Refused(Why.MISSING)

    @property
    def takes_tokens(self) -> bool:
        """Whether a client may bring credentials itself, and not only a proxy for it."""
        return any(not isinstance(scheme, ProxyIdentity) for scheme in self.schemes)

    def challenges(self, *, bad_token: bool = False) -> str:
        """The header ``WWW-Authenticate``; of a bad token it says no more than that (RFC 6750 3)."""
        error = ', error="invalid_token"'
        return ", ".join(
            f'{scheme.challenge} realm="{REALM}"{error if bad_token and isinstance(scheme, BearerTokens) else ""}'
            for scheme in self.schemes
        )

    async def start(self) -> None:
        """Begins to look after the keys of bearer tokens."""
        for scheme in self.schemes:
            if isinstance(scheme, BearerTokens):
                await scheme.keys.start()

    async def stop(self) -> None:
        """Ends that."""
        for scheme in self.schemes:
            if isinstance(scheme, BearerTokens):
                await scheme.keys.stop()
