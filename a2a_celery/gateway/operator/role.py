"""Operator's role. The setting `operators` lists the owners who have the role."""

from __future__ import annotations

from collections.abc import Sequence

from ..protocol_errors import Denial, PermissionDeniedError

ANY_CALLER = "*"
"""Entry of `operators` that makes every caller of a gateway without authentication an operator."""


class OperatorRole:
    """Role of the owners in `operators`. Unauthenticated callers have the role only with `ANY_CALLER`."""

    def __init__(self, operators: Sequence[str]) -> None:
        self._owners = frozenset(operators)

    def includes(self, owner: str) -> bool:
        """Return True if `owner` ("" for an unauthenticated caller) is an operator."""
        return ANY_CALLER in self._owners or (owner != "" and owner in self._owners)

    def require(self, owner: str) -> None:
        """Raise PermissionDeniedError unless `owner` is an operator."""
        if not self.includes(owner):
            caller = f"the owner {owner!r} is" if owner else "an unauthenticated caller is"
            text = f"The operator's role is required, and {caller} not in a2a_operators"
            raise PermissionDeniedError(text, Denial.OPERATOR)
