"""The SDK's own spans, which cost nothing where nobody records them.

Wherever OpenTelemetry is installed, and many packages bring it along, the SDK begins a span for each step of a request,
also in a process that has set no tracing up: a seventh of what a request takes here by itself.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from a2a.utils import telemetry

from .tracing import tracing


def only_where_traced() -> None:
    """From now on the SDK asks for each span whether this process traces; it may begin to later on."""
    names = vars(telemetry)
    if isinstance(names["trace"], ModuleType):  # else it is switched off, or asks already
        names["trace"] = _Asking(names["trace"])


class _Asking:
    """``opentelemetry.trace``, as the SDK uses it."""

    def __init__(self, api: Any) -> None:
        self._api = api

    def get_tracer(self, *names: str) -> Any:
        return _UNHEARD if tracing() is None else self._api.get_tracer(*names)


class _Unheard:
    """A tracer, and its spans, of which nothing is kept."""

    def start_as_current_span(self, *_: Any, **__: Any) -> _Unheard:
        return self

    def __enter__(self) -> _Unheard:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def set_attribute(self, *_: Any) -> None:
        pass

    def set_status(self, *_: Any, **__: Any) -> None:
        pass

    def record_exception(self, *_: Any) -> None:
        pass


_UNHEARD = _Unheard()
