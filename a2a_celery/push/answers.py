"""What a receiver said, as far as it is kept: its beginning, as text, without what it says again of the request."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any, cast

import httpcore

KEPT = 4096
"""Characters of an answer."""
BODY_PATIENCE = 2.0
"""Seconds for an answer's body when its status is there."""
REMOVED = "[…]"


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer: for a dead letter, and for operators to read."""

    status: int
    text: str = ""
    """At most 4,096 characters, without control characters, and without the config's token and credentials."""


async def read_answer(response: httpcore.Response, secrets: tuple[str, ...]) -> Answer:
    """The answer, with so much of its body as comes in two seconds; the rest is not read.

    One that is read to its end leaves its connection to the next post.
    """
    enough = KEPT + max((len(form) for form in _forms(secrets)), default=0)
    body = b""
    with suppress(httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, TimeoutError, OSError):
        async with asyncio.timeout(BODY_PATIENCE), aclosing(cast(Any, response.aiter_stream())) as chunks:
            async for chunk in chunks:
                body += chunk
                if len(body) > enough:
                    break
    text = body[: enough + 1].decode("utf-8", "replace")
    for form in _forms(secrets):
        text = text.replace(form, REMOVED)
    return Answer(response.status, "".join(c if c.isprintable() or c in "\n\t" else "�" for c in text)[:KEPT])


def _forms(secrets: tuple[str, ...]) -> list[str]:
    """The secrets as they may stand in an answer, plain or in JSON; the longest first: one may be part of another."""
    forms = {form for secret in secrets if secret for form in (secret, json.dumps(secret)[1:-1])}
    return sorted(forms, key=len, reverse=True)
