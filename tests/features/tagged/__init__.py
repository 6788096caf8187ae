"""Feature of these tests: an option of agents tags their tasks. The package does not know this feature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

from a2a.types import SendMessageRequest

from a2a_celery import ConfigError, Settings
from a2a_celery.features.feature import FilteredTasks, TaskFilter
from a2a_celery.lifecycle.references import Scope, quote_key_part
from a2a_celery.store import Keys
from a2a_celery.store.verbs import section


def tag_index(keys: Keys, tag: str) -> str:
    """Return the common prefix of the sorted sets of the tasks with a tag."""
    return f"{keys.prefix}:tag:{quote_key_part(tag)}:"


class Forbidden(NamedTuple):
    """Refusal of a tag."""

    tag: str


@section(Path(__file__).with_name("section.lua"))
class Tag(NamedTuple):
    """Section of ``create_task`` and ``continue_task``."""

    tag: str
    index_prefix: str

    def parse(self, task_id: str, reply: Sequence[bytes]) -> Forbidden | None:
        """Parse the reply of the section's ``check``."""
        return Forbidden(reply[1].decode()) if reply[0] == b"forbidden" else None


TAG_FILTER = TaskFilter("tag", "List the tasks with this tag.", lambda keys, tag: FilteredTasks(tag_index(keys, tag)))


@dataclass(frozen=True)
class Tagged:
    """What an agent uses of the feature; see `Feature`."""

    OPTIONS: ClassVar[frozenset[str]] = frozenset({"tag"})
    recognizes_repeats: ClassVar[bool] = False

    tag: str

    @classmethod
    def of_agent(cls, agent: str, options: Mapping[str, Any]) -> Self | None:
        """Return the tag of the agent's tasks."""
        if "tag" not in options:
            return None
        if not isinstance(options["tag"], str):
            raise ConfigError(f"agent {agent!r}: tag = {options['tag']!r}: a text")
        return cls(options["tag"])

    def check_settings(self, agent: str, settings: Settings) -> None:
        """Require nothing."""

    def section_for_message(self, keys: Keys, scope: Scope, request: SendMessageRequest) -> Tag:
        """Return the tag as a section."""
        return Tag(self.tag, tag_index(keys, self.tag))
