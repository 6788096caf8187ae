"""Parser of the HTTP header Retry-After."""

from __future__ import annotations

import re
from contextlib import suppress
from email.utils import parsedate_to_datetime


def parse_retry_after(value: str, now: float) -> float | None:
    """Return the seconds that a Retry-After header asks for, or None if `value` is neither seconds nor an HTTP date.

    A date counts from `now`, in seconds since 1970.

    Source: RFC 9110, section 10.2.3.
    """
    text = value.strip()
    if re.fullmatch(r"[0-9]{1,9}", text):
        return float(text)
    with suppress(ValueError, OverflowError):
        return max(0.0, parsedate_to_datetime(text).timestamp() - now)
    return None
