"""Memory of an agent in a context, and memory of the tasks that wait for an answer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from a2a_celery import Turn
from a2a_celery.frameworks.conversation import MAX_PAUSED, Conversation


def conversation(state: dict[str, Any], task_id: str = "t1") -> Conversation:
    return Conversation(cast(Turn, SimpleNamespace(task_id=task_id, session=SimpleNamespace(state=state))))


def test_a_context_begins_without_memory() -> None:
    conversation_store = conversation({})

    assert (conversation_store.memory, conversation_store.questions) == (None, [])


def test_each_waiting_task_has_its_own_memory() -> None:
    state: dict[str, Any] = {}
    conversation(state, "t1").go_on({"said": 1})
    conversation(state, "t2").pause({"said": 2}, [{"id": "q"}])
    conversation(state, "t3").go_on({"said": 3})

    assert conversation(state, "t2").memory == {"said": 2}
    assert conversation(state, "t2").questions == [{"id": "q"}]
    assert conversation(state, "t4").memory == {"said": 3}
    assert conversation(state, "t4").questions == []

    conversation(state, "t2").go_on({"said": 4})

    assert state == {"memory": {"said": 4}, "paused": {}}


def test_of_too_many_waiting_tasks_the_oldest_is_forgotten() -> None:
    state: dict[str, Any] = {}
    for n in range(MAX_PAUSED + 1):
        conversation(state, f"t{n}").pause({"said": n}, [{"id": n}])

    conversation(state, "t1").pause({"said": "again"}, [{"id": 1}])

    assert list(state["paused"]) == [*(f"t{n}" for n in range(2, MAX_PAUSED + 1)), "t1"]
