"""Option ``--save``, which writes the files of a response to a folder. The agent's file names are untrusted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, count
from mimetypes import guess_extension
from pathlib import Path
from typing import BinaryIO

import click
from a2a.types import Message, Part

from ...client import Result

MAX_STEM = 150
"""Maximum length of a file name without its suffix, in bytes of UTF-8. File systems permit 255 bytes for the name with
its suffix and the number of `_new_file`."""

MAX_SUFFIX = 16
"""Maximum length of a suffix, in characters. A longer suffix is treated as a part of the stem."""

NOT_IN_NAMES = re.compile(r'[\x00-\x1f\x7f<>:"|?*]')

save_option = click.option(
    "--save",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Write the files of the response to FOLDER. An existing file is never replaced.",
)


def save_files(result: Result, folder: Path) -> None:
    """Write the files in the artifacts and the message of `result` to `folder`, and print each name on stderr.

    Files that the response links by URL are not downloaded.

    Raises:
        click.ClickException: A file cannot be written.
    """
    for default, part in _files(result):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with _new_file(folder / safe_name(part, default)) as file:
                file.write(part.raw)
        except OSError as e:
            raise click.ClickException(f"{e.filename or folder}: {e.strerror}") from e
        click.echo(f"saved {file.name} ({len(part.raw)} bytes)", err=True)


def safe_name(part: Part, default: str) -> str:
    """Return a safe file name for a part: a single path component that is not hidden and not too long.

    A part without a file name gets the name `default`, with a suffix for its media type.
    """
    file_name = part.filename or f"{default}{guess_extension(part.media_type) or ''}"
    last = NOT_IN_NAMES.sub("_", re.split(r"[/\\]", file_name)[-1])
    printable = "".join(character for character in last if character.isprintable())
    name = Path(printable.strip().lstrip(". ") or "file")
    if len(name.suffix) > MAX_SUFFIX:
        return _truncate(name.name)
    return _truncate(name.stem) + name.suffix


def _truncate(stem: str) -> str:
    return stem.encode()[:MAX_STEM].decode(errors="ignore")


def _files(result: Result) -> Iterator[tuple[str, Part]]:
    """Return the parts that contain a file, each with the name to use if the part has no file name."""
    parts = [(artifact.name or artifact.artifact_id, part) for artifact in result.artifacts for part in artifact.parts]
    parts += [("file", part) for part in (result.message or Message()).parts]
    return ((name, part) for name, part in parts if part.HasField("raw"))


def _new_file(path: Path) -> BinaryIO:
    """Create and open `path` or, if `path` exists, the first free name of the form ``report-2.pdf``."""
    names = chain([path.name], (f"{path.stem}-{number}{path.suffix}" for number in count(2)))
    for name in names:
        with suppress(FileExistsError):
            return path.with_name(name).open("xb")  # follows no symbolic link
    raise AssertionError
