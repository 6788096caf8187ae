"""Idempotency keys in the store: which messages were accepted within the last seconds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple, Self

from a2a.types import SendMessageConfiguration, SendMessageRequest
from google.protobuf.json_format import MessageToDict

from ...lifecycle.parents import remove_parent
from ...lifecycle.references import Scope, quote_key_part
from ...lifecycle.refusals import Reason, Refusal
from ...store import Keys
from ...store.tasks.replies import Known
from ...store.verbs import section


@section(Path(__file__).with_suffix(".lua"))
class IdempotencyKey(NamedTuple):
    """Section of ``create_task`` and ``continue_task``.

    A message with the same id and digest is a repeated message. A message with the same id and a different digest is a
    conflict.

    Attributes:
        key: Key of a hash with the digest, task and log position of the accepted message. The hash expires after the
            window.
        digest: Digest of the request.
        window_ms: Milliseconds for which the key is valid.
    """

    key: str
    digest: str
    window_ms: int

    @classmethod
    def of(cls, keys: Keys, scope: Scope, message_id: str, digest: str, window_ms: int) -> Self:
        """Return the idempotency key of the message with the id `message_id` in `scope`."""
        return cls(f"{keys.prefix}:message:{scope}:{quote_key_part(message_id)}", digest, window_ms)

    def parse(self, task_id: str, reply: Sequence[bytes]) -> Known | Refusal | None:
        """Parse the reply of the section's ``check``, or return None for any other reply."""
        match reply[0]:
            case b"known":
                _, known_id, version, preceding_turns = reply
                return Known(known_id.decode(), int(version), int(preceding_turns))
            case b"conflict":
                return Refusal(Reason.SAME_MESSAGE_ID, task_id, {"window": self.window_ms / 1000})
        return None


def message_digest(params: SendMessageRequest) -> str:
    """Return a digest that is equal for two requests if and only if they ask for the same work. The digest does not
    depend on the binding.

    `return_immediately` and `history_length` are excluded, so that a client can wait for a task by sending its message
    again. The tenant is excluded because it is part of the scope, and the parent because it is not part of the work.
    """
    work = SendMessageRequest()
    work.CopyFrom(params)
    work.ClearField("tenant")
    work.ClearField("configuration")
    remove_parent(work.message)
    configuration = SendMessageConfiguration()
    configuration.CopyFrom(params.configuration)
    configuration.ClearField("return_immediately")
    configuration.ClearField("history_length")
    canonical = json.dumps([MessageToDict(work), MessageToDict(configuration)], sort_keys=True, separators=(",", ":"))
    return sha256(canonical.encode()).hexdigest()
