"""Command that reads the messages that arrive while a run executes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from a2a.types import Message, StreamResponse

from ...lifecycle.references import RunRef
from ..blobs.references import decode_as
from ..keys import Keys
from ..verbs import Reply, verb
from .commands import RunLost


@verb
def read_messages(keys: Keys, ref: RunRef, *, token: str, received: int) -> Reply[list[Message] | RunLost]:
    """Read the messages that have arrived for a claimed run, except the first `received` messages.

    The task does not change. `settle_run` records the number of messages that the agent has read.
    """

    def parse(reply: Sequence[Any]) -> list[Message] | RunLost:
        if reply[0] != b"messages":
            return RunLost.of(reply)
        return [decode_as(StreamResponse, content).message for content in reply[1]]

    return Reply(parse)
