"""Who a request is from, once that is known."""

from __future__ import annotations

from dataclasses import dataclass

from a2a.auth.user import User
from starlette.authentication import BaseUser

MAX_OWNER_LENGTH = 256
"""Characters; it is a part of keys in the store."""


@dataclass(frozen=True, slots=True)
class Identity(BaseUser, User):
    """An authenticated caller, as Starlette and as the SDK know users.

    The same `owner` is the same caller, whichever scheme said so. `tenants` are those it may use; None: every one, and
    none too.
    """

    owner: str
    tenants: frozenset[str] | None = None

    @property
    def is_authenticated(self) -> bool:
        return True

    @property
    def user_name(self) -> str:
        return self.owner

    @property
    def display_name(self) -> str:
        return self.owner

    @property
    def identity(self) -> str:
        return self.owner

    def may_use(self, tenant: str) -> bool:
        """Whether it may ask in `tenant`, "" for none."""
        return self.tenants is None or tenant in self.tenants


def is_owner(name: object) -> bool:
    """Whether `name` can be an owner's: "" is nobody's, and what can't be printed can't be looked for in a log."""
    return isinstance(name, str) and 0 < len(name) <= MAX_OWNER_LENGTH and name.isprintable()
