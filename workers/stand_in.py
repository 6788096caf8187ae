"""What the samples of agent frameworks have in a model's place, so that they run without a key: five rules."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

WAITING = 3600.0


@dataclass(frozen=True)
class Call:
    """A tool that the model wants called, with its arguments."""

    name: str
    arguments: dict[str, str]


async def think(said: Sequence[str], result: str | None = None) -> str | Call:
    """The model's answer to a conversation: what the user `said` in it, and what the tool gave that was called last."""
    if result is not None:
        return f"Done: {result}."
    if said[-1].startswith("wait"):
        await asyncio.sleep(WAITING)
    if said[-1].startswith("fail"):
        raise RuntimeError("the model is away")
    if said[-1].startswith("book "):
        return Call("book", {"what": said[-1].removeprefix("book ")})
    return f"You said: {'; '.join(said)}."
