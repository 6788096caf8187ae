"""The verbs about push-notification configs: save, read, list, delete, and which secrets they are sealed with.

What a config says is opaque here: it comes sealed (see ``a2a_celery/crypto/sealing.py``), and is given back as it came.
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
from ..keys import Keys, Scope, quoted
from ..operation import Argument, Operation, script
from ..tasks.results import Limited, Missing, TooManyConfigs

logger = logging.getLogger(__name__)

MAX_PUSH_CONFIGS = 10
"""How many configs a task may have; one more is refused."""


@dataclass(frozen=True, slots=True)
class NewPushConfig:
    """A config, sealed with the secret that has this `fingerprint`. The id is unique in its task, and not empty.

    Its `account` (`Scope.account`) may have `most` configs in all; None: any number.
    """

    config_id: str
    sealed: bytes = field(repr=False)
    fingerprint: str
    account: str = ""
    most: int | None = None


def save_push_config(
    keys: Keys, scope: Scope | None, task_id: str, config: NewPushConfig
) -> Operation[Missing | TooManyConfigs | Limited | None]:
    """Saves a config of a task in `scope` (None: in any); None: it is saved.

    A new one is owed the events that follow. One that takes the place of another is owed what that still was, at once,
    also if that was given up; whoever delivers to the old one finds it gone.
    """

    def parse(answer: bytes | Sequence[bytes]) -> Missing | TooManyConfigs | Limited | None:
        if not isinstance(answer, bytes):
            return Limited.parse(answer)
        if answer == b"saved":
            return None
        return Missing() if answer == b"missing" else TooManyConfigs()

    arguments = [_scope(scope), *config_arguments(keys, config)]
    return Operation(script("save_push_config"), keys.task(task_id), arguments, parse)


def read_push_config(keys: Keys, scope: Scope | None, task_id: str, config_id: str) -> Operation[bytes | None]:
    """The sealed config; None when there is none of that id, or no such task in `scope` (None: in any)."""

    def parse(answer: Sequence[bytes] | None) -> bytes | None:
        return answer[1] if answer else None

    return _read(keys, scope, task_id, quoted(config_id), parse)


def list_push_configs(keys: Keys, scope: Scope | None, task_id: str) -> Operation[list[tuple[str, bytes]] | None]:
    """All configs of a task as (id, sealed), by id; None when there is no such task in `scope` (None: in any)."""

    def parse(answer: Sequence[bytes] | None) -> list[tuple[str, bytes]] | None:
        if answer is None:
            return None
        return sorted((unquote(name.decode()), sealed) for name, sealed in zip(answer[::2], answer[1::2], strict=True))

    return _read(keys, scope, task_id, "", parse)


def delete_push_config(keys: Keys, scope: Scope | None, task_id: str, config_id: str) -> Operation[bool]:
    """Deletes a config, if it is there, at once; False when there is no such task in `scope` (None: in any)."""
    arguments = [_scope(scope), quoted(config_id)]
    return Operation(script("delete_push_config"), keys.task(task_id), arguments, bool)


def secrets_in_use(keys: Keys) -> Operation[frozenset[str]]:
    """Fingerprints of the secrets that configs are sealed with; none when there are no configs."""

    def parse(answer: Sequence[bytes]) -> frozenset[str]:
        return frozenset(fingerprint.decode() for fingerprint in answer)

    return Operation(script("secrets_in_use"), [keys.secrets], [], parse)


async def require_secrets_in_use(store: AsyncStore, keys: Keys, sealer: Sealer | None) -> None:
    """Returns if `sealer` opens every config there is, or if the store is away: then nobody can say.

    Raises:
        ConfigError: it does not; says what to do.
    """
    try:
        in_use = await store.run(secrets_in_use(keys))
    except StoreUnavailable as e:
        logger.warning("could not check the secret key: %s", e)
        return
    require_secrets(sealer, in_use)


def config_arguments(keys: Keys, config: NewPushConfig | None) -> list[Argument]:
    """A config, as ``save_config`` in scripts/lib takes it.

    Raises:
        ValueError: its id is empty.
    """
    if config is None:
        return [""]
    if not config.config_id:
        raise ValueError("a push-notification config needs an id")
    return [
        quoted(config.config_id),
        config.sealed,
        config.fingerprint,
        keys.sealed_with(config.fingerprint),
        keys.secrets,
        keys.deliveries,
        keys.dead_deliveries,
        MAX_PUSH_CONFIGS,
        keys.webhooks(config.account) if config.most is not None else "",
        config.most or "",
    ]


def _read(keys: Keys, scope: Scope | None, task_id: str, name: str, parse: Any) -> Operation[Any]:
    return Operation(script("read_push_configs"), keys.task(task_id), [_scope(scope), name], parse)


def _scope(scope: Scope | None) -> str:
    return "*" if scope is None else str(scope)
