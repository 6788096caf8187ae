"""Steering messages in the store. A claim returns the messages that earlier runs of the turn have read, and a run reads
the messages that arrive."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from a2a.types import Message

from ...lifecycle.references import RunRef
from ...store import Keys
from ...store.blobs.references import decode_stored
from ...store.runs.commands import RunLost
from ...store.verbs import Reply, section, verb


@section(Path(__file__).with_suffix(".lua"))
class SteeringSection(NamedTuple):
    """Section of ``claim_run``.

    Its value contains the indexes, in the task's history, of the further messages that the agent read in the earlier
    turns in which it asked the questions that this turn answers.
    """

    @classmethod
    def of(cls, _: Keys) -> Self:
        """Return the section."""
        return cls()

    def parse(self, task_id: str, reply: Sequence[bytes]) -> tuple[int, ...] | None:
        """Parse the value of the section's ``claimed``, or return None for any other reply."""
        return tuple(map(int, reply[1].split())) if reply[0] == b"read" else None


@verb
def read_messages(keys: Keys, ref: RunRef, *, token: str, received: int) -> Reply[list[Message] | RunLost]:
    """Read the messages that have arrived for a claimed run, except the first `received` messages.

    The task does not change. `settle_run` records the number of messages that the agent has read.
    """

    def parse(reply: Sequence[Any]) -> list[Message] | RunLost:
        if reply[0] != b"messages":
            return RunLost.of(reply)
        return [decode_stored(content).message for content in reply[1]]

    return Reply(parse)
