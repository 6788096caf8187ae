"""Spans in the text output of the tests' collector."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tests.support.receivers.collector import CollectedSpan

SPAN_KINDS = {
    f"SPAN_KIND_{kind}": number
    for number, kind in enumerate(("INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER"), 1)
}


def spans(text: str) -> list[CollectedSpan]:
    """Return all spans in the output."""
    return [span for resource in text.split("ResourceSpans #")[1:] for span in _resource_spans(resource)]


def _resource_spans(text: str) -> Iterator[CollectedSpan]:
    service = _values(text.partition("ScopeSpans #")[0]).get("service.name", "")
    for scope_text in text.split("ScopeSpans #")[1:]:
        scope = _field(scope_text, "InstrumentationScope").split()[0]
        for span in re.split(r"^Span #\d+$", scope_text, flags=re.MULTILINE)[1:]:
            header, _, events = span.partition("\nEvents:\n")
            yield CollectedSpan(
                service,
                scope,
                _field(header, "Name           :"),
                _field(header, "Trace ID       :"),
                _field(header, "ID             :"),
                _field(header, "Parent ID      :"),
                SPAN_KINDS[_field(header, "Kind           :")],
                _values(header),
                tuple(re.findall(r"^ +-> Name: (.*)$", events, re.MULTILINE)),
                _field(header, "Status code    :") == "STATUS_CODE_ERROR",
            )


def _field(text: str, name: str) -> str:
    match = re.search(rf"^ *{name} *(.*)$", text, re.MULTILINE)
    assert match is not None, f"{name} is not in {text}"
    return match[1].strip()


def _values(text: str) -> dict[str, Any]:
    """Return the attributes in `text`, with their values as text."""
    return dict(re.findall(r"^ +-> ([\w.]+): \w+\((.*)\)$", text, re.MULTILINE))
