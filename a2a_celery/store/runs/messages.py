"""Reading of the messages that arrive while a run executes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from a2a.types import Message, StreamResponse

from ..blobs.references import decode_as
from ..keys import Keys
from ..operation import Operation, script
from .commands import RunLost, RunRef


def read_messages(keys: Keys, ref: RunRef, *, token: str, received: int) -> Operation[list[Message] | RunLost]:
    """Return the messages that have arrived for a claimed run, without the first `received` ones.

    The task does not change. The end of the run records how many messages its agent has read, see ``settle_run``.
    """

    def parse(reply: Sequence[Any]) -> list[Message] | RunLost:
        if reply[0] != b"messages":
            return RunLost.of(reply)
        return [decode_as(StreamResponse, stored).message for stored in reply[1]]

    return Operation(script("read_messages"), keys.task(ref.task_id), [ref.run, token, received], parse)
