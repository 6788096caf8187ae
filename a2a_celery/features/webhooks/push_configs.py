"""Commands that save, read, list and delete push-notification configs.

The store cannot read the content of a config, because ``a2a_celery/crypto/sealing.py`` seals it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypeVar
from urllib.parse import unquote

from ...lifecycle.references import Scope
from ...lifecycle.refusals import Reason, Refusal
from ...store import Keys
from ...store.keys import AnyScope, Quoted
from ...store.operation import Operation
from ...store.tasks.replies import Reasons, refusal
from ...store.verbs import Parser, Reply, TaskId, Unsent, verb
from .config_section import CONFIG_REASONS, NewPushConfig, config_section

T = TypeVar("T")

ESCALATION = "a2a_celery/escalation"
"""Id of the config that an agent adds to its task. Clients cannot see or change it."""


ConfigToSave = Annotated[NewPushConfig, config_section]
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

    return Reply(lambda reply: None if reply == [b"saved"] else refusal(task_id, reply, SAVE_REASONS))


SAVE_REASONS: Reasons = {**CONFIG_REASONS, b"missing": (Reason.MISSING, {}), b"limited": (Reason.LIMITED, {})}


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
