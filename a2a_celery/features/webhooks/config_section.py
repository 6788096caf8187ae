"""Push-notification config that a script saves, such as the config in a client's message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ...lifecycle.references import quote_key_part
from ...lifecycle.refusals import Reason, Refusal
from ...store import Keys
from ...store.tasks.replies import Reasons, refusal
from ...store.verbs import Digits, section
from .keys import account_cursors, dead_deliveries, deliveries

MAX_PUSH_CONFIGS = 10
"""Maximum number of configs of a task."""


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


@section(Path(__file__).with_suffix(".lua"))
class ConfigSection(NamedTuple):
    """Section of ``create_task`` or ``continue_task`` for a message with a push-notification config. Other scripts
    receive a config as an argument with the same fields.

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

    def parse(self, task_id: str, reply: Sequence[bytes]) -> Refusal | None:
        """Parse the refusal of a config of a task that has too many configs."""
        return refusal(task_id, reply, CONFIG_REASONS) if reply[0] in CONFIG_REASONS else None


LIMIT_TEXTS = {"webhooks": "The limit of {} push notification configs is reached: delete one"}
"""Text of the error by the name of the limit."""


CONFIG_REASONS: Reasons = {
    b"configs": (
        Reason.FEATURE,
        {"text": f"a task has at most {MAX_PUSH_CONFIGS} push notification configs: delete one"},
    )
}
"""Reasons of a refused config, by the first word of the reply of `refuse_config` in ``scripts/lib/configs.lua``."""


def config_section(keys: Keys, config: NewPushConfig, *, max_configs: int = MAX_PUSH_CONFIGS) -> ConfigSection:
    """Return the section that saves a config.

    Args:
        keys: Keys of the deployment.
        config: Config to save.
        max_configs: Maximum number of configs of the task.

    Raises:
        ValueError: The id of the config is empty.
    """
    if not config.config_id:
        raise ValueError("a push-notification config needs an id")
    return ConfigSection(
        id=quote_key_part(config.config_id),
        sealed=config.sealed,
        fingerprint=config.fingerprint,
        sealed_with=keys.sealed_with(config.fingerprint),
        secrets=keys.secrets,
        deliveries=deliveries(keys),
        dead_deliveries=dead_deliveries(keys),
        max_configs=max_configs,
        listed=account_cursors(keys, config.account) if config.account_limit is not None else "",
        max_listed=str(config.account_limit or ""),
    )
