"""Who the commands are to a gateway: a bearer token or an API key, from the environment or a file.

Not from the command line, which everybody on the machine can read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypedDict, TypeVar

import click

BEARER = "A2A_BEARER"
API_KEY = "A2A_API_KEY"


class Given(TypedDict):
    """What `Credentials` and `RemoteAgent` take."""

    headers: dict[str, str]
    bearer: str | None
    api_key: str | None


F = TypeVar("F", bound=Callable[..., Any])

_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


def with_credentials(command: F) -> F:
    """Adds the options: `bearer_file`, `api_key_file`, and `header`."""
    for option in (
        click.option("--header", "-H", multiple=True, metavar="NAME:VALUE", help="A header, not a secret one."),
        click.option(
            "--api-key-file",
            envvar=f"{API_KEY}_FILE",
            type=_FILE,
            help=f"An API key, in a file. Not given: {API_KEY}_FILE, or the key in {API_KEY}.",
        ),
        click.option(
            "--bearer-file",
            envvar=f"{BEARER}_FILE",
            type=_FILE,
            help=f"A bearer token, in a file. Not given: {BEARER}_FILE, or the token in {BEARER}.",
        ),
    ):
        command = option(command)
    return command


def credentials_of(
    header: Iterable[str],
    bearer_file: Path | None,
    api_key_file: Path | None,
    environ: Mapping[str, str] = os.environ,
) -> Given:
    """What goes with each request. A file that is named wins over a variable.

    Raises:
        click.BadParameter: a header is none, or a file has no token; says nothing of what is in it.
    """
    return Given(
        headers=dict(map(header_of, header)),
        bearer=_secret(bearer_file, "--bearer-file", environ.get(BEARER)),
        api_key=_secret(api_key_file, "--api-key-file", environ.get(API_KEY)),
    )


def header_of(given: str) -> tuple[str, str]:
    """The name and the value of a header, as it is written: "Name: value".

    Raises:
        click.BadParameter: it is something else.
    """
    name, colon, value = given.partition(":")
    if not colon or not name.strip():
        raise click.BadParameter(f"{name!r}: write 'Name: value'", param_hint="--header")
    return name.strip(), value.strip()


def _secret(file: Path | None, option: str, variable: str | None) -> str | None:
    if file is None:
        return (variable or "").strip() or None
    try:
        text = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        raise click.BadParameter(f"{file}: it can't be read", param_hint=option) from None
    if not text or len(text.split()) > 1:
        raise click.BadParameter(f"{file}: one word is meant, and nothing else", param_hint=option)
    return text
