"""Long texts of a message, which are not passed through protobuf's JSON parser."""

from __future__ import annotations

from typing import Any

import pytest
from a2a.types import SendMessageRequest
from a2a.utils.errors import InvalidParamsError
from google.protobuf.json_format import ParseDict

from a2a_celery.gateway.bindings.request_parser import LONG_TEXT, parse_json

LONG = "ä" * (LONG_TEXT + 1)


def of_parts(*parts: Any) -> dict[str, Any]:
    return {"message": {"messageId": "m", "role": "ROLE_USER", "parts": list(parts)}}


def test_long_texts_are_parsed_as_short_ones() -> None:
    value = of_parts({"text": "a"}, {"text": LONG, "mediaType": "text/plain"}, {"data": {"text": LONG}}, {"text": LONG})

    assert parse_json(value, SendMessageRequest) == ParseDict(value, SendMessageRequest())


@pytest.mark.parametrize(
    "part", [{"text": LONG, "url": "https://example.com"}, {"text": LONG + "\ud800"}, {"text": LONG, "filename": 1}]
)
def test_a_wrong_part_with_a_long_text_is_refused(part: dict[str, Any]) -> None:
    with pytest.raises(InvalidParamsError):
        parse_json(of_parts(part), SendMessageRequest)
