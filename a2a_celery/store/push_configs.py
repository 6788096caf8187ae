"""The verbs about push-notification configs: save, read, delete, and which secrets they are sealed with.

What a config says is opaque here: it comes sealed (see ``push/sealing.py``), and is given back as it came.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import unquote

from .keys import Keys, Scope, quoted
from .operation import Argument, Operation, script

MAX_CONFIGS = 10
"""How many configs a task may have; one more is refused."""


@dataclass(frozen=True, slots=True)
class SealedConfig:
    """A config, sealed with the secret that has this `fingerprint`. The id is unique in its task, and not empty."""

    config_id: str
    sealed: bytes
    fingerprint: str


@dataclass(frozen=True, slots=True)
class ConfigPage:
    """Configs as (id, sealed) in the order of their ids; `more` says whether others follow."""

    configs: list[tuple[str, bytes]]
    more: bool


def save_push_config(
    keys: Keys, scope: Scope | None, task_id: str, config: SealedConfig
) -> Operation[Literal["missing", "saved", "full"]]:
    """Saves a config of a task in `scope` (None: in any); "full": the task has `MAX_CONFIGS`.

    A new one is owed the events that follow. One that takes the place of another is owed what that still was, at once,
    also if that was given up; whoever delivers to the old one finds it gone.
    """
    arguments = [_scope(scope), *config_arguments(keys, config)]
    return Operation(script("save_push_config"), keys.task(task_id).as_list(), arguments, _word)


def read_push_config(keys: Keys, scope: Scope | None, task_id: str, config_id: str) -> Operation[bytes | None]:
    """The sealed config; None when there is none of that id, or no such task in `scope` (None: in any)."""

    def parse(answer: Sequence[bytes] | None) -> bytes | None:
        return answer[1] if answer else None

    return _read(keys, scope, task_id, quoted(config_id), parse)


def read_push_configs(
    keys: Keys, scope: Scope | None, task_id: str, *, after: str = "", limit: int = MAX_CONFIGS
) -> Operation[ConfigPage | None]:
    """Up to `limit` configs behind the id `after`; None when there is no such task in `scope` (None: in any)."""

    def parse(answer: Sequence[bytes] | None) -> ConfigPage | None:
        if answer is None:
            return None
        pairs = sorted((unquote(name.decode()), sealed) for name, sealed in zip(answer[::2], answer[1::2], strict=True))
        following = [pair for pair in pairs if pair[0] > after]
        return ConfigPage(following[:limit], len(following) > limit)

    return _read(keys, scope, task_id, "", parse)


def delete_push_config(keys: Keys, scope: Scope | None, task_id: str, config_id: str) -> Operation[bool]:
    """Deletes a config, if it is there, at once; False when there is no such task in `scope` (None: in any)."""
    arguments = [_scope(scope), quoted(config_id)]
    return Operation(script("delete_push_config"), keys.task(task_id).as_list(), arguments, bool)


def secrets_in_use(keys: Keys) -> Operation[frozenset[str]]:
    """Fingerprints of the secrets that configs are sealed with; none when there are no configs."""

    def parse(answer: Sequence[bytes]) -> frozenset[str]:
        return frozenset(fingerprint.decode() for fingerprint in answer)

    return Operation(script("secrets_in_use"), [keys.secrets], [], parse)


def config_arguments(keys: Keys, config: SealedConfig | None) -> list[Argument]:
    """A config, as ``save_config`` in scripts/prelude.lua takes it."""
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
        MAX_CONFIGS,
    ]


def _read(keys: Keys, scope: Scope | None, task_id: str, name: str, parse: Any) -> Operation[Any]:
    return Operation(script("read_push_configs"), keys.task(task_id).as_list(), [_scope(scope), name], parse)


def _scope(scope: Scope | None) -> str:
    return "*" if scope is None else str(scope)


def _word(answer: bytes) -> Any:
    return answer.decode()
