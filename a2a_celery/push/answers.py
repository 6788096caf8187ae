"""What a receiver said, as far as it is kept: its beginning, as text, without what it says again of the request."""

from __future__ import annotations

import codecs
import html
import json
from collections.abc import Collection, Iterator
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any, cast

import httpcore

from ..clock import SYSTEM_CLOCK, Clock

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
    """At most 4,096 characters, without control characters, and without the config's token, credentials and URL."""


async def read_answer(response: httpcore.Response, secrets: tuple[str, ...], clock: Clock = SYSTEM_CLOCK) -> Answer:
    """The answer, with so much of its body as comes in two seconds; the rest is not read.

    One that is read to its end leaves its connection to the next post.
    """
    forms = _forms(secrets)
    enough = KEPT + max((len(form) for form in forms), default=0)
    body, whole = b"", False
    with suppress(httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, TimeoutError, OSError):
        async with clock.timeout(BODY_PATIENCE), aclosing(cast(Any, response.aiter_stream())) as chunks:
            async for chunk in chunks:
                body += chunk
                if len(body) > enough:
                    break
            else:
                whole = True
    whole = whole and len(body) <= enough
    text = codecs.getincrementaldecoder("utf-8")("replace").decode(body[:enough], final=whole)
    text = _without(text, forms, whole=whole)
    return Answer(response.status, "".join(c if c.isprintable() or c in "\n\t" else "�" for c in text)[:KEPT])


def _without(text: str, forms: Collection[str], *, whole: bool) -> str:
    """`text` with each run of secrets removed; of one that is not `whole`, a secret's beginning at the end too: what is
    removed makes the text shorter, so that its end may be among what is kept."""
    found = [(at, at + len(form)) for form in forms for at in _places(text, form)]
    if not whole:
        cut = max((_overlap(text, form) for form in forms), default=0)
        found += [(len(text) - cut, len(text))] if cut else []
    kept, done = "", 0
    for begin, end in sorted(found):
        if begin > done or not done:
            kept += text[done:begin] + REMOVED
        done = max(done, end)
    return kept + text[done:]


def _places(text: str, form: str) -> Iterator[int]:
    at = text.find(form)
    while at >= 0:
        yield at
        at = text.find(form, at + len(form))


def _overlap(text: str, form: str) -> int:
    """How many of the last characters of `text` are the first ones of `form`."""
    return next((n for n in range(min(len(text), len(form)), 0, -1) if text.endswith(form[:n])), 0)


def _forms(secrets: tuple[str, ...]) -> set[str]:
    """The secrets as they may stand in an answer: plain, in JSON (with its slashes escaped or not) or in HTML."""
    forms: set[str] = set()
    for secret in filter(None, secrets):
        in_json = json.dumps(secret)[1:-1]
        forms |= {secret, in_json, in_json.replace("/", "\\/"), html.escape(secret)}
    return forms
