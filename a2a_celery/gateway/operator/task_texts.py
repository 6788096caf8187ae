"""Requests and status texts of the tasks in a list, for an operator who owns the tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from a2a.types import Message, Role

from ...lifecycle.references import Scope
from ...store import AsyncStore, Keys
from ...store.tasks.commands import read_task

MAX_TEXT = 200
MAX_TASKS = 50
"""Maximum number of characters of a text, and of tasks whose texts are read for one response."""


async def add_texts(
    store: AsyncStore, keys: Keys, tasks: Sequence[dict[str, Any]], owns: Callable[[Scope], bool]
) -> None:
    """Add the request and the text of the status to each of `tasks` whose scope the operator owns."""

    async def add(task: dict[str, Any], scope: Scope) -> None:
        stored = await store.run(read_task(keys, scope, task["id"], artifacts=False, resolve_blobs=False))
        if stored is not None:
            request = next((message for message in stored[0].history if message.role == Role.ROLE_USER), Message())
            task |= {"request": _text(request), "text": _text(stored[0].status.message)}

    scopes = [(task, Scope(task["agent"], task["tenant"], task["owner"])) for task in tasks]
    await asyncio.gather(*(add(task, scope) for task, scope in [each for each in scopes if owns(each[1])][:MAX_TASKS]))


def _text(message: Message) -> str:
    """Return the text of a message on one line. The middle of a long text is omitted, so that texts with a common
    beginning differ."""
    text = " ".join(" ".join(part.text[: 20 * MAX_TEXT] for part in message.parts).split())
    half = MAX_TEXT // 2
    return text if len(text) <= MAX_TEXT else f"{text[:half].rstrip()} … {text[-half:].lstrip()}"
