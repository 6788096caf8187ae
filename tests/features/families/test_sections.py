"""Sections of a message that names a parent."""

from __future__ import annotations

import pytest
from a2a.types import AgentCard, Message, SendMessageRequest

from a2a_celery.agents import Agent
from a2a_celery.features.families.section import ChildSection
from a2a_celery.lifecycle.parents import name_parent
from a2a_celery.operations.errors import MAX_ID_LENGTH
from a2a_celery.operations.requests import sections_for_message
from a2a_celery.store import Keys
from tests.support.store.seeds import ANN

AGENT = Agent("a", AgentCard(name="a"), "function", None)


def message_of(parent_id: str, **options: bool) -> Message:
    message = Message()
    name_parent(message, parent_id, **options)
    return message


def sections_for(message: Message, *caller_sections: ChildSection) -> list[ChildSection]:
    return sections_for_message(AGENT, Keys("test"), ANN, SendMessageRequest(message=message), caller_sections)


@pytest.mark.parametrize("options", [{}, {"cancel": False}, {"is_called": True}])
def test_a_message_that_names_a_parent_creates_a_child(options: dict[str, bool]) -> None:
    cancels, is_called = options.get("cancel", True), options.get("is_called", False)

    sections = sections_for(message_of("p", **options))

    assert sections == [ChildSection.of("p", cancels=cancels, is_called=is_called)]


def test_the_caller_s_section_replaces_the_section_of_the_message() -> None:
    assert sections_for(message_of("p"), ChildSection.of("p", is_waiting=True)) == []


@pytest.mark.parametrize("parent_id", ["", "p" * (MAX_ID_LENGTH + 1)])
def test_a_message_without_a_valid_parent_needs_no_section(parent_id: str) -> None:
    assert sections_for(message_of(parent_id)) == []


def test_a_message_to_a_task_creates_no_child() -> None:
    message = message_of("p")
    message.task_id = "t"

    assert not any(isinstance(section, ChildSection) for section in sections_for(message))
