"""Stored responses have no secrets, in any form and wherever they are cut."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpcore
import pytest

from a2a_celery.push.responses import read_response
from a2a_celery.retry_policy import parse_retry_after

SECRET = "s3cret-credentials"


async def stored_text(body: bytes, *secrets: str, breaks_off: bool = False) -> str:
    async def chunks() -> AsyncIterator[bytes]:
        yield body
        if breaks_off:
            raise httpcore.RemoteProtocolError("closed")

    return (await read_response(httpcore.Response(500, content=chunks()), secrets or (SECRET,))).text


@pytest.mark.parametrize("token", ["tok-" + "ABCDEFGHIJKLMNOPQRSTUVW" * 2, 'q"' * 25])
async def test_removing_secrets_does_not_reveal_a_part_of_another(token: str) -> None:
    """The body is cut within a secret, far after the first 4,096 characters, and earlier text is removed."""
    assert await stored_text("é ".encode() + token.encode() * 300, token) == "é […]"
    assert await stored_text((b"-" + token.encode()) * 300, token) in {"-[…]" * n for n in range(75, 90)}


async def test_no_part_of_a_secret_is_stored_of_an_incomplete_body() -> None:
    assert await stored_text(b"no: " + SECRET[:7].encode(), breaks_off=True) == "no: […]"


@pytest.mark.parametrize("cut", range(1, 4))
async def test_a_split_character_is_not_stored(cut: int) -> None:
    assert await stored_text("no: 😀".encode()[: 4 + cut], breaks_off=True) == "no: "


async def test_a_complete_body_is_stored_completely() -> None:
    """Its last character is the first of the secret."""
    assert await stored_text(b"no hooks") == "no hooks"


async def test_secrets_that_overlap_are_removed_as_a_whole() -> None:
    assert await stored_text(b"<abcdefgh>", "abcd", "cdefgh") == "<[…]>"


@pytest.mark.parametrize("form", ["/hook/s3cret/abc&d", r"\/hook\/s3cret\/abc&d", "/hook/s3cret/abc&amp;d"])
async def test_a_secret_is_removed_as_servers_write_it(form: str) -> None:
    assert await stored_text(f"cannot POST {form}!".encode(), "/hook/s3cret/abc&d") == "cannot POST […]!"


DATE = "Fri, 13 Feb 2009 23:31:30 GMT"  # 1234567890


@pytest.mark.parametrize(
    ("value", "asked"),
    [
        *(("120", 120.0), (" 0 ", 0.0), (DATE, 10.0), ("Friday, 13-Feb-09 23:31:30 GMT", 10.0)),
        *(("Thu, 12 Feb 2009 00:00:00 GMT", 0.0), ("999999999", 999999999.0)),
        *((value, None) for value in ("", "soon", "-5", "1.5", "9" * 5000, "1e9", "\xff")),
        *((value, None) for value in ("Fri, 99 Feb 2009 23:31:30 GMT", "Fri, 13 Feb 2009")),
        *((value, None) for value in ("Fri, 13 Feb 99999999999 23:31:30 GMT", "0x10", "٣")),
    ],
)  # fmt: skip
def test_retry_after_is_seconds_or_a_date(value: str, asked: float | None) -> None:
    assert parse_retry_after(value, 1_234_567_880.0) == asked
