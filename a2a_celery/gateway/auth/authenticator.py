"""Authentication by one of several schemes, and the errors for rejected callers."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from a2a.utils.errors import A2AError

from ...clock import SYSTEM_CLOCK, Clock
from ..protocol_errors import BurstDelay, ServiceUnavailableError, UnauthenticatedError
from .refusal_log import RefusalLog
from .schemes import CredentialsRefused, Identity, PresentedCredentials, ProxyIdentity, RefusalReason, Scheme
from .tokens import BearerTokens

REALM = "a2a"

FAILURES_PER_SECOND = 50
"""Number of failed authentications per second that a gateway process answers at once. The errors of further failures
are delayed."""


class Authenticator:
    """Authenticator of callers. The first scheme in `schemes` that finds its kind of credentials decides.

    Bearer tokens and API keys are checked before a proxy's header, because a service mesh sets its header on every
    request, even on a request with a user's token.

    Attributes:
        refusal_log: Log of the refused requests.
    """

    def __init__(self, schemes: Sequence[Scheme], clock: Clock = SYSTEM_CLOCK) -> None:
        self.schemes = tuple(schemes)
        self.refusal_log = RefusalLog(clock)
        self._failures = BurstDelay(FAILURES_PER_SECOND, clock)

    async def identify(self, presented: PresentedCredentials, *, max_delayed: float = inf) -> Identity:
        """Return the identity of the caller with the presented credentials.

        Args:
            presented: Credentials of a request.
            max_delayed: Number of delayed errors from which on the error is not delayed.

        Raises:
            CredentialsRefused: The caller is unknown. After many failures, the error is delayed; see
                `FAILURES_PER_SECOND`.
            KeysUnavailable: The issuer's keys are unavailable.
        """
        try:
            return await self._identify(presented)
        except CredentialsRefused:
            await self._failures.wait(max_delayed)
            raise

    async def _identify(self, presented: PresentedCredentials) -> Identity:
        for scheme in self.schemes:
            if isinstance(scheme, ProxyIdentity):
                scheme.require_trusted_proxy(presented)
        for scheme in self.schemes:
            identity = await scheme.identify(presented)
            if identity is not None:
                return identity
        raise CredentialsRefused(RefusalReason.MISSING)

    @property
    def accepts_client_credentials(self) -> bool:
        """True if clients can send credentials for a scheme themselves, without a proxy."""
        return any(not isinstance(scheme, ProxyIdentity) for scheme in self.schemes)

    def challenges(self, *, bad_token: bool = False) -> str:
        """Return the value of ``WWW-Authenticate``. If `bad_token`, the challenge of bearer tokens contains
        ``invalid_token`` (RFC 6750, section 3)."""
        error = ', error="invalid_token"'
        return ", ".join(
            f'{scheme.challenge} realm="{REALM}"{error if bad_token and isinstance(scheme, BearerTokens) else ""}'
            for scheme in self.schemes
        )

    async def start(self) -> None:
        """Start refreshing the issuer's keys."""
        for scheme in self.schemes:
            if isinstance(scheme, BearerTokens):
                await scheme.keys.start()

    async def stop(self) -> None:
        """Stop refreshing the issuer's keys."""
        for scheme in self.schemes:
            if isinstance(scheme, BearerTokens):
                await scheme.keys.stop()


def protocol_error(error: Exception) -> A2AError:
    """Return the protocol's error for a failed authentication. Clients receive the same error for every reason."""
    return UnauthenticatedError() if isinstance(error, CredentialsRefused) else ServiceUnavailableError()
