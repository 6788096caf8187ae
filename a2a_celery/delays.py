"""Delays in seconds: arguments and options, and the header Retry-After."""

from __future__ import annotations

import re
from contextlib import suppress
from email.utils import parsedate_to_datetime
from math import isfinite
from typing import Any

MAX_DELAY = 366 * 24 * 3600
"""Maximum delay of a retry or a wait, in seconds."""


def is_number(value: Any) -> bool:
    """Return True if the value of an option is a number. True and False are not numbers."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def require_delay(name: str, value: Any) -> None:
    """Check that `value`, the argument or option `name`, is a delay in seconds.

    Raises:
        ValueError: `value` is not a number from 0 to `MAX_DELAY`.
    """
    if not is_number(value) or not isfinite(value) or not 0 <= value <= MAX_DELAY:
        raise ValueError(f"{name} = {value!r}: a number of seconds from 0 to {MAX_DELAY}")


def parse_retry_after(value: str, now: float) -> float | None:
    """Return the delay of a Retry-After header in seconds, or None if `value` is neither a number nor an HTTP date.

    Args:
        value: Value of the header.
        now: Current time in seconds since 1970, for the conversion of a date to a delay.

    Source: RFC 9110, section 10.2.3.
    """
    text = value.strip()
    if re.fullmatch(r"[0-9]{1,9}", text):
        return float(text)
    with suppress(ValueError, OverflowError):
        return max(0.0, parsedate_to_datetime(text).timestamp() - now)
    return None
