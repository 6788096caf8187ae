"""File parts: their media types, names, and the contents of ``data:`` URIs.

Source: RFC 2397 (``data:`` URIs); A2A specification, Part.
"""

from __future__ import annotations

import mimetypes
import re
from base64 import b64decode
from pathlib import PurePath
from urllib.parse import unquote, unquote_to_bytes

from a2a.types import Part

MAX_URI_HEADER = 1024
"""Maximum length of the media type in a ``data:`` URI."""

OFFICE_TYPES = {
    ".docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    ".pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
    ".xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
}
"""Media types that Python only knows on machines with a file such as ``/etc/mime.types``."""

_SCHEME = "data:"
_ESCAPES = {"%2B": "+", "%2F": "/", "%3D": "=", "%0A": "", "%0D": "", "%20": ""}
"""Escapes that may occur in the base64 content of a ``data:`` URI."""

_CHARSET = re.compile(r'\bcharset\s*=\s*"?([\w.:+-]+)', re.ASCII)
_URL = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#]*([^?#]*)", re.ASCII | re.IGNORECASE)


def declared_media_type(part: Part) -> str:
    """Return the media type that the sender of a part has declared, or "".

    The media type is the field `media_type` of the part or, if this field is empty, the type in a ``data:`` URI.

    Raises:
        ValueError: The part has an invalid ``data:`` URI.
    """
    if part.media_type or not _is_data_uri(part.url):
        return part.media_type
    return _split(part.url)[0]


def check_data_uri(part: Part) -> None:
    """Raise ValueError if a part has an invalid ``data:`` URI."""
    if _is_data_uri(part.url):
        _, is_base64, data = _split(part.url)
        if is_base64:
            _decode_base64(data)


def normalized_file(part: Part) -> Part:
    """Return a file part in the form that frameworks accept. Any other part is returned unchanged.

    The content of a ``data:`` URI becomes `raw`. A missing media type is taken from the ``data:`` URI, or guessed from
    the name or the path of the URL. The media type of the result has no parameters. Text in another charset is
    converted to UTF-8.

    Raises:
        ValueError: The part has an invalid ``data:`` URI.
    """
    if part.WhichOneof("content") not in ("raw", "url"):
        return part
    is_data_uri = _is_data_uri(part.url)
    media_type = declared_media_type(part) or _guess_media_type(part.filename or _path_of(part.url))
    file = Part()
    file.CopyFrom(part)
    if is_data_uri:
        _, is_base64, data = _split(part.url)
        file.raw = _decode_base64(data) if is_base64 else unquote_to_bytes(data)
        media_type = media_type or "text/plain"
    elif file.HasField("raw"):
        media_type = media_type or "application/octet-stream"
    file.media_type, _, parameters = (field.strip().lower() for field in media_type.partition(";"))
    charset = _CHARSET.search(parameters)
    if charset is not None and file.HasField("raw"):
        file.raw = _as_utf_8(file.raw, charset[1])
    return file


def file_name(part: Part) -> str:
    """Return the name of a file part, or a name with an extension for its media type if the part has no name."""
    return part.filename or f"file{mimetypes.guess_extension(part.media_type) or ''}"


def _is_data_uri(url: str) -> bool:
    return url[: len(_SCHEME)].lower() == _SCHEME


def _split(url: str) -> tuple[str, bool, str]:
    """Return the media type of a ``data:`` URI, True if its data is base64, and the data."""
    end = url.find(",", 0, MAX_URI_HEADER)
    if end < 0:
        raise ValueError("there is no comma between the media type and the data")
    media_type, separator, encoding = unquote(url[len(_SCHEME) : end]).rpartition(";")
    is_base64 = bool(separator) and encoding.strip().lower() == "base64"
    if not is_base64:
        media_type += separator + encoding
    if media_type.startswith(";"):
        media_type = f"text/plain{media_type}"
    return media_type.strip(), is_base64, url[end + 1 :]


def _decode_base64(data: str) -> bytes:
    if "%" in data:
        for escape, character in _ESCAPES.items():
            data = data.replace(escape, character).replace(escape.lower(), character)
    data = "".join(data.split())
    try:
        return b64decode(data + "=" * (-len(data) % 4), validate=True)
    except ValueError as problem:
        raise ValueError("the data is not base64") from problem


def _path_of(url: str) -> str:
    match = _URL.match(url)
    return "" if match is None else match[1]


def _guess_media_type(path: str) -> str:
    """Guess the media type of a file from its name. Return "" if it is unknown."""
    media_type, compression = mimetypes.guess_type(path, strict=False)
    media_type = media_type or OFFICE_TYPES.get(PurePath(path).suffix.lower())
    return media_type if media_type is not None and compression is None else ""


def _as_utf_8(content: bytes, charset: str) -> bytes:
    try:
        return content.decode(charset).encode()
    except (LookupError, UnicodeError):
        return content
