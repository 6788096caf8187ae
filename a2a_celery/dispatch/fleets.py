"""Fleets that share a broker. A header of each message names its fleet by the prefix of the fleet's keys."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from ..settings import DEFAULT_KEY_PREFIX

FLEET_HEADER = "a2a_fleet"
RETURNS_HEADER = "a2a_returns"
"""Header that counts how often workers of other fleets have returned the message to its queue."""

DEFAULT_FLEET = DEFAULT_KEY_PREFIX
"""The fleet of messages without a header."""

FIRST_DELAY = timedelta(milliseconds=100)
LONGEST_DELAY = timedelta(seconds=10)
MAX_RETURNS = 100
"""Maximum returns of a message. The message is then dropped, and a watcher of its fleet publishes the run again."""


def fleet_headers(fleet: str) -> dict[str, str]:
    return {} if fleet == DEFAULT_FLEET else {FLEET_HEADER: fleet}


def fleet_of(headers: Mapping[str, Any]) -> str:
    return str(headers.get(FLEET_HEADER) or DEFAULT_FLEET)


def returned_headers(headers: Mapping[str, Any], now: datetime) -> dict[str, Any] | None:
    """Return the headers for returning a message to its queue, or None if the message was returned too often.

    Workers do not begin the message before a delay, which grows with each return. Without a delay, the worker that
    returned the message may receive it again at once.
    """
    returns = headers.get(RETURNS_HEADER)
    returns = returns if isinstance(returns, int) else 0
    if not 0 <= returns < MAX_RETURNS:
        return None
    eta = max(now + min(FIRST_DELAY * 2 ** min(returns, 16), LONGEST_DELAY), _time(headers.get("eta")) or now)
    # kombu has decompressed the body
    returned = {name: value for name, value in headers.items() if name != "compression"}
    return returned | {"eta": eta.isoformat(), RETURNS_HEADER: returns + 1}


def _time(iso: object) -> datetime | None:
    try:
        time = datetime.fromisoformat(str(iso))
    except ValueError:
        return None
    return time if time.tzinfo else time.replace(tzinfo=UTC)
