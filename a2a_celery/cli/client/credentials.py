"""Credentials of client commands: a bearer token or an API key, from the environment or a file.

Credentials are not accepted on the command line, because every user of the machine can read the arguments of a process.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypedDict

import click

from ..options import with_options

BEARER = "A2A_BEARER"
API_KEY = "A2A_API_KEY"


class CredentialArguments(TypedDict):
    """Keyword arguments of `Credentials` and `RemoteAgent`."""

    headers: dict[str, str]
    bearer: str | None
    api_key: str | None


_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)

with_credentials = with_options(
    click.option(
        "--bearer-file",
        envvar=f"{BEARER}_FILE",
        type=_FILE,
        help=f"A file with a bearer token. Default: {BEARER}_FILE, or the token in {BEARER}.",
    ),
    click.option(
        "--api-key-file",
        envvar=f"{API_KEY}_FILE",
        type=_FILE,
        help=f"A file with an API key. Default: {API_KEY}_FILE, or the key in {API_KEY}.",
    ),
    click.option("--header", "-H", multiple=True, metavar="NAME:VALUE", help="An extra header; not for secrets."),
)
"""Decorator that adds the options --bearer-file, --api-key-file and --header."""


def credentials_of(
    header: Iterable[str], bearer_file: Path | None, api_key_file: Path | None, environ: Mapping[str, str] = os.environ
) -> CredentialArguments:
    """Return the credentials to send with each request. A file takes precedence over an environment variable.

    Raises:
        click.BadParameter: A header is malformed, a file cannot be read, or a file does not consist of exactly one
            word. The message never quotes the content of a file.
    """
    return CredentialArguments(
        headers=dict(map(header_of, header)),
        bearer=_secret(bearer_file, "--bearer-file", environ.get(BEARER)),
        api_key=_secret(api_key_file, "--api-key-file", environ.get(API_KEY)),
    )


def header_of(text: str) -> tuple[str, str]:
    """Parse a header of the form "Name: value".

    Raises:
        click.BadParameter: The text does not have this form.
    """
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise click.BadParameter(f"{name!r}: write 'Name: value'", param_hint="--header")
    return name.strip(), value.strip()


def _secret(file: Path | None, option: str, variable: str | None) -> str | None:
    if file is None:
        return (variable or "").strip() or None
    try:
        text = file.read_text(encoding="utf-8-sig").strip()
    except (OSError, UnicodeDecodeError):
        raise click.BadParameter(f"{file}: cannot be read", param_hint=option) from None
    if not text or len(text.split()) > 1:
        raise click.BadParameter(f"{file}: must contain one word", param_hint=option)
    return text
