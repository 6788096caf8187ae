"""Media types, names and contents of file parts."""

from __future__ import annotations

import pytest
from a2a.types import AgentCard, Message, Part, Role
from a2a.utils.errors import ContentTypeNotSupportedError, InvalidParamsError

from a2a_celery.lifecycle.files import declared_media_type, file_name, normalized_file
from a2a_celery.operations.requests import check_media_types, check_message

PNG = b"\x89PNG\xff"
WORD = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"


@pytest.mark.parametrize(
    ("part", "media_type"),
    [
        (Part(raw=b"x", media_type="text/csv"), "text/csv"),
        (Part(raw=b"x", filename="q3.pdf"), ""),
        (Part(url="https://example.com/q3.pdf"), ""),
        (Part(url="data:image/png;base64,iVBORw=="), "image/png"),
        (Part(url="DATA:image/png;BASE64,iVBORw=="), "image/png"),
        (Part(url="data:image/svg%2Bxml,<svg/>"), "image/svg+xml"),
        (Part(url="data:text/plain;charset=utf-8;base64,eA=="), "text/plain;charset=utf-8"),
        (Part(url="data:text/csv;charset=latin1,a;b"), "text/csv;charset=latin1"),
        (Part(url="data:;charset=utf-8,x"), "text/plain;charset=utf-8"),
        (Part(url="data:,x"), ""),
        (Part(url="data:image/png;base64,iVBORw==", media_type="image/x-icon"), "image/x-icon"),
        (Part(text="data:image/png;base64,x"), ""),
    ],
    ids=str,
)
def test_a_part_declares_its_media_type_itself_or_in_its_uri(part: Part, media_type: str) -> None:
    assert declared_media_type(part) == media_type


@pytest.mark.parametrize(
    ("part", "media_type", "content"),
    [
        (Part(raw=b"x", filename="q3.PDF"), "application/pdf", b"x"),
        (Part(raw=b"x", filename="a.docx"), WORD, b"x"),
        (Part(raw=b"x", filename="a.csv.gz"), "application/octet-stream", b"x"),
        (Part(raw=b"x", filename="README"), "application/octet-stream", b"x"),
        (Part(raw=b"x"), "application/octet-stream", b"x"),
        (Part(raw=b"x", filename="a.pdf", media_type="Image/PNG; q=1"), "image/png", b"x"),
        (Part(raw=b"\xe4", media_type='text/csv; charset="ISO-8859-1"'), "text/csv", "ä".encode()),
        (Part(raw=b"\xe4", media_type="text/csv; charset=utf-8"), "text/csv", b"\xe4"),
        (Part(raw=b"\xe4", media_type="text/csv; charset=unknown"), "text/csv", b"\xe4"),
        (Part(url="data:image/png;base64,/+8="), "image/png", b"\xff\xef"),
        (Part(url="data:image/png;base64,%2f%2B8%3d"), "image/png", b"\xff\xef"),
        (Part(url="data:image/png;base64,iVBO\r\n Rw"), "image/png", b"\x89PNG"),
        (Part(url="data:;base64,eA==", filename="q3.pdf"), "application/pdf", b"x"),
        (Part(url="data:text/csv;charset=latin1,a%20b%e4,c"), "text/csv", "a bä,c".encode()),
        (Part(url="data:,"), "text/plain", b""),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_file_has_a_media_type_and_content(part: Part, media_type: str, content: bytes) -> None:
    file = normalized_file(part)

    assert (file.media_type, file.WhichOneof("content"), file.raw) == (media_type, "raw", content)
    assert file.filename == part.filename


@pytest.mark.parametrize(
    ("part", "media_type"),
    [
        (Part(url="https://example.com/a/cat.png?size=1#x.pdf"), "image/png"),
        (Part(url="https://example.com/1", filename="cat.png"), "image/png"),
        (Part(url="https://example.com"), ""),
        (Part(url="https://[::1/q3.pdf"), "application/pdf"),
        (Part(url="example.com"), ""),
        (Part(url="https://example.com/x.pdf", media_type="text/html"), "text/html"),
    ],
    ids=str,
)
def test_the_type_of_a_url_is_guessed_from_its_name_or_path(part: Part, media_type: str) -> None:
    file = normalized_file(part)

    assert (file.media_type, file.url, file.filename) == (media_type, part.url, part.filename)


@pytest.mark.parametrize("part", [Part(text="x", filename="a.pdf"), Part(data={"number_value": 1})])
def test_text_and_data_are_unchanged(part: Part) -> None:
    assert normalized_file(part) is part


def test_a_file_without_a_name_is_named_by_its_type() -> None:
    named, unnamed = Part(raw=b"x", filename="a.csv"), Part(raw=b"x", media_type="application/pdf")

    assert [file_name(named), file_name(unnamed), file_name(Part(raw=b"x"))] == ["a.csv", "file.pdf", "file"]


def message(*parts: Part) -> Message:
    return Message(message_id="m", role=Role.ROLE_USER, parts=parts)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("data:image/png;base64", "comma"),
        ("data:" + "x" * 2000 + ",", "comma"),
        ("data:image/png;base64,a", "not base64"),
        ("data:image/png;base64,a$bc", "not base64"),
        ("data:image/png;base64,é===", "not base64"),
        ("data:image/png;base64,%41AAA", "not base64"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_an_invalid_data_uri_is_refused(url: str, problem: str) -> None:
    with pytest.raises(InvalidParamsError) as refused:
        check_message(message(Part(text="see"), Part(url=url)))

    assert str(refused.value).startswith("message.parts[1].url: Invalid data: URI: ")
    assert problem in str(refused.value)


def test_other_urls_are_not_checked() -> None:
    check_message(message(Part(url="data:text/plain,100%"), Part(url="gopher:x"), Part(raw=b"x")))


def test_the_media_type_of_a_data_uri_is_checked() -> None:
    card = AgentCard(default_input_modes=["text/plain", "image/png"])

    check_media_types(message(Part(url="data:image/png;base64,"), Part(url="data:text/plain;charset=utf-8,x")), card)
    with pytest.raises(ContentTypeNotSupportedError, match="application/pdf"):
        check_media_types(message(Part(url="data:application/pdf;base64,eA==")), card)
