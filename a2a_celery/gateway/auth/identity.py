"""Identity of an authenticated caller."""

from __future__ import annotations

from dataclasses import dataclass

from a2a.auth.user import User
from starlette.authentication import BaseUser

MAX_OWNER_LENGTH = 256
"""Maximum characters of an owner: the name is a part of keys in the store."""


@dataclass(frozen=True, slots=True)
class Identity(BaseUser, User):
    """Authenticated caller, in the form of Starlette's and the SDK's users.

    The same `owner` is the same caller in every scheme. `tenants` are the allowed ones ("" for requests without a
    tenant), or None for all.
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
        """Return True if the caller may use `tenant`, "" for none."""
        return self.tenants is None or tenant in self.tenants


def is_owner(name: object) -> bool:
    """Return True if `name` can be an owner: not empty, not too long, and printable for logs."""
    return isinstance(name, str) and 0 < len(name) <= MAX_OWNER_LENGTH and name.isprintable()
