"""References to runs, and scopes of tasks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote, unquote

_is_unreserved = re.compile(r"[A-Za-z0-9\-._~@]*").fullmatch


def quote_key_part(text: str) -> str:
    """Percent-encode `text` for use in a key. The result contains no colon, brace or space."""
    return text if _is_unreserved(text) else quote(text, safe="-._~@")


@dataclass(frozen=True, slots=True)
class Scope:
    """Agent, tenant and owner of a task. A task is invisible in all other scopes.

    `agent` is the registered name of the agent. `tenant` and `owner` come from the caller, and are "" for a caller
    without tenant or owner.
    """

    agent: str = ""
    tenant: str = ""
    owner: str = ""

    def __str__(self) -> str:
        return f"{quote_key_part(self.agent)}/{quote_key_part(self.tenant)}/{quote_key_part(self.owner)}"

    @property
    def account(self) -> str:
        """Account to which requests, tasks and stored bytes are charged.

        An authenticated owner has one account in all tenants, ``/<owner>``. The anonymous callers of a tenant share the
        account ``<tenant>/``.
        """
        return f"/{quote_key_part(self.owner)}" if self.owner else f"{quote_key_part(self.tenant)}/"

    @classmethod
    def parse(cls, text: str) -> Scope:
        """Parse the text that `str` returns for a scope."""
        return cls(*(unquote(part) for part in text.split("/")))


@dataclass(frozen=True, slots=True)
class RunRef:
    """Reference to a run of a task. `name` is the id of the Celery task that executes the run."""

    task_id: str
    run: int

    @property
    def name(self) -> str:
        return f"{self.task_id}.{self.run}"

    @classmethod
    def of(cls, name: str) -> RunRef | None:
        """Return a reference to the run whose Celery task has the id `name`, or None if no run has such an id."""
        task_id, _, run = name.rpartition(".")
        return cls(task_id, int(run)) if task_id and run.isascii() and run.isdecimal() else None
