"""Commands that save, read, list and delete push-notification configs, and read the fingerprints of their secrets.

The store cannot read the content of a config, because ``a2a_celery/crypto/sealing.py`` seals it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple, TypeVar
from urllib.parse import unquote

from ...lifecycle.references import Scope, quote_key_part
from ...lifecycle.refusals import Reason, Refusal
from ..keys import AnyScope, Keys, Quoted
from ..operation import Operation
from ..tasks.replies import Reasons, refusal
from ..verbs import Digits, Parser, Reply, TaskId, Unsent, verb

T = TypeVar("T")

MAX_PUSH_CONFIGS = 10
"""Maximum number of configs of a task."""

ESCALATION = "a2a_celery/escalation"
"""Id of the config that an agent adds to its task. Clients cannot see or change it."""


@dataclass(frozen=True, slots=True)
class NewPushConfig:
    """Config to save.

    Attributes:
        config_id: Id of the config. The id must be unique in the task, and must not be empty.
        sealed: Sealed content.
        fingerprint: Fingerprint of the secret that seals the content.
        account: Account of the task's owner; see `Scope.account`.
        account_limit: Maximum number of configs of the account, or None for no limit.
    """

    config_id: str
    sealed: bytes = field(repr=False)
    fingerprint: str
    account: str = ""
    account_limit: int | None = None


class ConfigArguments(NamedTuple):
    """Push-notification config, as the argument of a script.

    Attributes:
        id: Quoted id.
        sealed: Sealed content.
        fingerprint: Fingerprint of the secret that seals the content.
        sealed_with: Key of the list of values that the secret seals.
        secrets: Key of the secrets.
        deliveries: Key of the deliveries.
        dead_deliveries: Key of the deliveries that were given up.
        max_configs: Maximum number of configs of the task.
        listed: Key of the list of the owner's cursors, or "" for no limit.
        max_listed: Maximum length of that list, or "" for no limit.
    """

    id: str
    sealed: bytes
    fingerprint: str
    sealed_with: str
    secrets: str
    deliveries: str
    dead_deliveries: str
    max_configs: Digits
    listed: str
    max_listed: str


def config_arguments(keys: Keys, config: NewPushConfig, *, max_configs: int = MAX_PUSH_CONFIGS) -> ConfigArguments:
    """Return a config in the form that ``save_config`` in ``scripts/lib`` receives.

    Args:
        keys: Keys of the deployment.
        config: Config to save.
        max_configs: Maximum number of configs of the task.

    Raises:
        ValueError: The id of the config is empty.
    """
    if not config.config_id:
        raise ValueError("a push-notification config needs an id")
    return ConfigArguments(
        id=quote_key_part(config.config_id),
        sealed=config.sealed,
        fingerprint=config.fingerprint,
        sealed_with=keys.sealed_with(config.fingerprint),
        secrets=keys.secrets,
        deliveries=keys.deliveries,
        dead_deliveries=keys.dead_deliveries,
        max_configs=max_configs,
        listed=keys.webhooks(config.account) if config.account_limit is not None else "",
        max_listed=str(config.account_limit or ""),
    )


ConfigToSave = Annotated[NewPushConfig, config_arguments]
"""Push-notification config as an argument of a script."""


@verb
def save_push_config(keys: Keys, scope: AnyScope, task_id: TaskId, config: ConfigToSave) -> Reply[Refusal | None]:
    """Save a config of a task.

    A new config receives the events that are written after it. A config that replaces another config receives the
    undelivered events of the replaced config immediately, even if their delivery was given up. A deliverer of the
    replaced config loses its lease.

    Args:
        keys: Keys of the deployment.
        scope: Scope of the task, or None for any scope.
        task_id: Id of the task.
        config: Config to save.

    Returns:
        None if the config was saved, or the reason for the refusal.
    """

    def parse(reply: bytes | Sequence[bytes]) -> Refusal | None:
        if reply == b"saved":
            return None
        reasons: Reasons = {
            b"missing": (Reason.MISSING, {}),
            b"full": (Reason.TOO_MANY_CONFIGS, {"maximum": MAX_PUSH_CONFIGS}),
            b"limited": (Reason.LIMITED, {}),
        }
        return refusal(task_id, [reply] if isinstance(reply, bytes) else reply, reasons)

    return Reply(parse)


def read_push_config(keys: Keys, scope: Scope | None, task_id: str, config_id: str) -> Operation[bytes | None]:
    """Read the sealed content of a config.

    Returns:
        The sealed content, or None if `scope` has no such task or config.
    """

    def parse(reply: Sequence[bytes] | None) -> bytes | None:
        return reply[1] if reply else None

    return _read_push_configs(keys, scope, task_id, config_id, parse)


def list_push_configs(keys: Keys, scope: Scope | None, task_id: str) -> Operation[list[tuple[str, bytes]] | None]:
    """Read all configs of a task.

    Returns:
        Pairs of config id and sealed content, sorted by id, or None if `scope` has no such task.
    """

    def parse(reply: Sequence[bytes] | None) -> list[tuple[str, bytes]] | None:
        if reply is None:
            return None
        return sorted(
            (unquote(name.decode()), sealed_config) for name, sealed_config in zip(reply[::2], reply[1::2], strict=True)
        )

    return _read_push_configs(keys, scope, task_id, None, parse)


@verb
def _read_push_configs(
    keys: Keys, scope: AnyScope, task_id: TaskId, config_id: Quoted | None, parse: Unsent[Parser[T]]
) -> Reply[T]:
    """`config_id` is None for all configs."""
    return Reply(parse)


@verb
def delete_push_config(keys: Keys, scope: AnyScope, task_id: TaskId, config_id: Quoted) -> Reply[bool]:
    """Delete a config, if the config exists.

    Returns:
        False if `scope` has no such task.
    """
    return Reply(bool)


@verb
def secrets_in_use(keys: Keys) -> Reply[frozenset[str]]:
    """Read the fingerprints of the secrets that seal stored data."""

    def parse(reply: Sequence[bytes]) -> frozenset[str]:
        return frozenset(fingerprint.decode() for fingerprint in reply)

    return Reply(parse)
