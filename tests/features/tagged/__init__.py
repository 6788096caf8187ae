"""Feature of these tests: an option of agents tags their tasks. The package does not know this feature."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from a2a_celery import ConfigError
from a2a_celery.features.feature import Feature, FilteredTasks, TaskFilter

if TYPE_CHECKING:  # a process that only registers agents does not import the SDK
    from a2a.types import SendMessageRequest

    from a2a_celery.lifecycle.references import Scope
    from a2a_celery.store import Keys

    from .section import Tag


@dataclass(frozen=True)
class Tagged(Feature):
    """Tags of one agent's tasks."""

    OPTIONS: ClassVar[frozenset[str]] = frozenset({"tag"})

    tag: str

    @classmethod
    def of_agent(cls, agent: str, options: Mapping[str, Any]) -> Self | None:
        """Return the tag of the agent's tasks, or None."""
        if "tag" not in options:
            return None
        if not isinstance(options["tag"], str):
            raise ConfigError(f"agent {agent!r}: tag = {options['tag']!r}: a text")
        return cls(options["tag"])

    def section_for_message(self, keys: Keys, scope: Scope, request: SendMessageRequest) -> Tag:
        """Return the tag as a section."""
        from .section import Tag, tag_index  # noqa: PLC0415 -- the SDK

        return Tag(self.tag, tag_index(keys, self.tag))


def tasks_with_tag(keys: Keys, tag: str) -> FilteredTasks:
    """Return the tasks with a tag."""
    from .section import tag_index  # noqa: PLC0415 -- the SDK

    return FilteredTasks(tag_index(keys, tag))


TAG_FILTER = TaskFilter("tag", "List the tasks with this tag.", tasks_with_tag)
