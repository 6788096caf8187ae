"""Stand-in for a model: five rules, so that the samples of agent frameworks run without an API key."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

WAITING = 3600.0


@dataclass(frozen=True)
class Call:
    """Tool call that the model requests."""

    name: str
    arguments: dict[str, str]


async def think(texts: Sequence[str], result: str | None = None) -> str | Call:
    """Return the model's answer to the user's texts and, if given, the result of the last tool call."""
    if result is not None:
        return f"Done: {result}."
    if texts[-1].startswith("wait"):
        await asyncio.sleep(WAITING)
    if texts[-1].startswith("fail"):
        raise RuntimeError("the model is unavailable")
    if texts[-1].startswith("book "):
        return Call("book", {"what": texts[-1].removeprefix("book ")})
    return f"You said: {'; '.join(texts)}."
