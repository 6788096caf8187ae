"""Commands that save, read, list and delete push-notification configs, and the check of their secrets.

The store cannot read the content of a config, because ``a2a_celery/crypto/sealing.py`` seals it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from ...crypto.sealing import Sealer, require_secrets
from ...errors import StoreUnavailable
from ..client.connection import AsyncStore
from ..keys import Keys, Scope, quote_key_part
from ..operation import Argument, Operation, script
from ..tasks.results import Limited, Missing, TooManyConfigs

logger = logging.getLogger(__name__)

MAX_PUSH_CONFIGS = 10
"""Maximum number of configs of a task."""


ESCALATION = "a2a_celery/escalation"
"""Id of the config that an agent adds to its task with ``escalate_to``. Clients cannot see or change it."""


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


def save_push_config(
    keys: Keys, scope: Scope | None, task_id: str, config: NewPushConfig
) -> Operation[Missing | TooManyConfigs | Limited | None]:
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

    def parse(reply: bytes | Sequence[bytes]) -> Missing | TooManyConfigs | Limited | None:
        if not isinstance(reply, bytes):
            return Limited.parse(reply)
        if reply == b"saved":
            return None
        return Missing() if reply == b"missing" else TooManyConfigs()

    arguments = [_scope(scope), *config_arguments(keys, config)]
    return Operation(script("save_push_config"), keys.task(task_id), arguments, parse)


def read_push_config(keys: Keys, scope: Scope | None, task_id: str, config_id: str) -> Operation[bytes | None]:
    """Read the sealed content of a config.

    Returns:
        The sealed content, or None if `scope` has no such task or config.
    """

    def parse(reply: Sequence[bytes] | None) -> bytes | None:
        return reply[1] if reply else None

    return _read(keys, scope, task_id, quote_key_part(config_id), parse)


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

    return _read(keys, scope, task_id, "", parse)


def delete_push_config(keys: Keys, scope: Scope | None, task_id: str, config_id: str) -> Operation[bool]:
    """Delete a config, if the config exists.

    Returns:
        False if `scope` has no such task.
    """
    arguments = [_scope(scope), quote_key_part(config_id)]
    return Operation(script("delete_push_config"), keys.task(task_id), arguments, bool)


def secrets_in_use(keys: Keys) -> Operation[frozenset[str]]:
    """Read the fingerprints of the secrets that seal configs or sessions."""

    def parse(reply: Sequence[bytes]) -> frozenset[str]:
        return frozenset(fingerprint.decode() for fingerprint in reply)

    return Operation(script("secrets_in_use"), [keys.secrets], [], parse)


async def require_secrets_in_use(store: AsyncStore, keys: Keys, sealer: Sealer | None) -> None:
    """Check that `sealer` has the secrets of all stored configs and sessions, unless the store is unavailable.

    Raises:
        ConfigError: `sealer` lacks a secret. The message describes the remedy.
    """
    try:
        in_use = await store.run(secrets_in_use(keys))
    except StoreUnavailable as e:
        logger.warning("skipped the check that a2a_secret_key has all secrets in use: %s", e)
        return
    require_secrets(sealer, in_use)


def config_arguments(
    keys: Keys, config: NewPushConfig | None, *, max_configs: int = MAX_PUSH_CONFIGS
) -> list[Argument]:
    """Return the arguments of ``save_config`` in ``scripts/lib``.

    Args:
        keys: Keys of the deployment.
        config: Config to save, or None.
        max_configs: Maximum number of configs of the task.

    Raises:
        ValueError: The id of the config is empty.
    """
    if config is None:
        return [""]
    if not config.config_id:
        raise ValueError("a push-notification config needs an id")
    return [
        quote_key_part(config.config_id),
        config.sealed,
        config.fingerprint,
        keys.sealed_with(config.fingerprint),
        keys.secrets,
        keys.deliveries,
        keys.dead_deliveries,
        max_configs,
        keys.webhooks(config.account) if config.account_limit is not None else "",
        config.account_limit or "",
    ]


def _read(keys: Keys, scope: Scope | None, task_id: str, name: str, parse: Any) -> Operation[Any]:
    return Operation(script("read_push_configs"), keys.task(task_id), [_scope(scope), name], parse)


def _scope(scope: Scope | None) -> str:
    return "*" if scope is None else str(scope)
