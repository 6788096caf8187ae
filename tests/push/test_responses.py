"""Stored responses of receivers. A stored response contains no part of a secret, wherever the response is cut."""

from __future__ import annotations

import errno
import ssl
from collections.abc import AsyncIterator

import httpcore
import pytest

from a2a_celery.delays import parse_retry_after
from a2a_celery.push.responses import describe_failure, is_disconnect, read_response

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


@pytest.mark.parametrize("offset", range(1, 4))
async def test_a_split_character_is_not_stored(offset: int) -> None:
    assert await stored_text("no: 😀".encode()[: 4 + offset], breaks_off=True) == "no: "


async def test_a_complete_body_is_stored_completely() -> None:
    """The last character of the body is the first character of the secret."""
    assert await stored_text(b"no hooks") == "no hooks"


@pytest.mark.parametrize("body", [f"{SECRET} is unknown", f"no {SECRET}, {SECRET}", SECRET])
async def test_each_occurrence_of_a_secret_is_removed(body: str) -> None:
    assert await stored_text(body.encode()) == body.replace(SECRET, "[…]")


async def test_secrets_that_overlap_are_removed_as_a_whole() -> None:
    assert await stored_text(b"<abcdefgh>", "abcd", "cdefgh") == "<[…]>"


@pytest.mark.parametrize("form", ["/hook/s3cret/abc&d", r"\/hook\/s3cret\/abc&d", "/hook/s3cret/abc&amp;d"])
async def test_a_secret_is_removed_as_servers_write_it(form: str) -> None:
    assert await stored_text(f"cannot POST {form}!".encode(), "/hook/s3cret/abc&d") == "cannot POST […]!"


def of_network(cause: Exception) -> httpcore.ConnectError:
    """Return the error that httpcore raises for a failed connection."""
    outer = OSError("All connection attempts failed")
    outer.__cause__ = cause
    return httpcore.ConnectError(outer)


def of_certificate(text: str) -> ssl.SSLCertVerificationError:
    """Return a certificate error with the message `text`."""
    error = ssl.SSLCertVerificationError(1, text)
    error.verify_message = text
    return error


@pytest.mark.parametrize(
    ("cause", "reason"),
    [
        (OSError(errno.EHOSTUNREACH, "Connect call failed ('10.0.0.1', 80)"), "no connection: No route to host"),
        (
            OSError(errno.ENETUNREACH, "Connect call failed ('10::1', 80)"),
            "no connection: Network is unreachable",
        ),
        (OSError("[Errno 113] ('10.0.0.1', 80)"), "the connection broke"),
        (of_certificate("self-signed certificate"), "TLS: self-signed certificate"),
        (of_certificate("Hostname mismatch, certificate is not valid for 'a.example'."), "TLS: Hostname mismatch"),
    ],
)
def test_the_reason_for_a_failure_names_no_address(cause: Exception, reason: str) -> None:
    assert describe_failure(of_network(cause), 15) == reason


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (httpcore.ReadError(), True),
        (httpcore.WriteError(), True),
        (httpcore.RemoteProtocolError("Server disconnected without sending a response."), True),
        (httpcore.RemoteProtocolError("illegal status line"), False),
        (httpcore.ConnectError(), False),
    ],
)
def test_a_connection_that_the_server_may_have_closed(error: Exception, expected: bool) -> None:
    assert is_disconnect(error) is expected


DATE = "Fri, 13 Feb 2009 23:31:30 GMT"  # 1234567890


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *(("120", 120.0), (" 0 ", 0.0), (DATE, 10.0), ("Friday, 13-Feb-09 23:31:30 GMT", 10.0)),
        *(("Thu, 12 Feb 2009 00:00:00 GMT", 0.0), ("999999999", 999999999.0)),
        *((value, None) for value in ("", "soon", "-5", "1.5", "9" * 5000, "1e9", "\xff")),
        *((value, None) for value in ("Fri, 99 Feb 2009 23:31:30 GMT", "Fri, 13 Feb 2009")),
        *((value, None) for value in ("Fri, 13 Feb 99999999999 23:31:30 GMT", "0x10", "٣")),
    ],
)  # fmt: skip
def test_retry_after_is_seconds_or_a_date(value: str, expected: float | None) -> None:
    assert parse_retry_after(value, 1_234_567_880.0) == expected
