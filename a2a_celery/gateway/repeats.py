"""Messages that come again: what makes two requests the same message.

Source: A2A specification 3.3.1: an agent may use the message id to detect duplicates.
"""

from __future__ import annotations

import json
from hashlib import sha256

from a2a.types import SendMessageConfiguration, SendMessageRequest
from google.protobuf.json_format import MessageToDict

from ..agents import Agent
from ..store.tasks import Once


def once(agent: Agent, params: SendMessageRequest) -> Once | None:
    """How the store knows `params`, as the client sent them, again; None if the agent does not ask for that."""
    if agent.idempotency_window is None:
        return None
    return Once(params.message.message_id, digest_of(params), int(agent.idempotency_window * 1000))


def digest_of(params: SendMessageRequest) -> str:
    """The same for two requests exactly if they ask for the same work, over whichever binding they came.

    How the client wants its answer (at once, how much history) is left out, so that it may wait for a task by
    repeating what it sent; so is the tenant, which is the scope's.
    """
    work = SendMessageRequest()
    work.CopyFrom(params)
    work.ClearField("tenant")
    work.ClearField("configuration")
    asked = SendMessageConfiguration()
    asked.CopyFrom(params.configuration)
    asked.ClearField("return_immediately")
    asked.ClearField("history_length")
    canonical = json.dumps([MessageToDict(work), MessageToDict(asked)], sort_keys=True, separators=(",", ":"))
    return sha256(canonical.encode()).hexdigest()
