"""``a2a-celery keys``: adds, lists and removes API keys in the file that gateways read."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

import click

from ..errors import ConfigError
from ..gateway.auth.key_file import ENTRY, VARIABLE, identities_of
from ..gateway.auth.schemes import MAX_OWNER_LENGTH, Identity

SHOWN_DIGITS = 12
"""Number of hexadecimal digits of a hash that ``keys list`` shows."""

BOM = "\ufeff"

file_option = click.option(
    "--file",
    "path",
    envvar=VARIABLE,
    required=True,
    show_envvar=True,
    type=click.Path(path_type=Path, dir_okay=False, resolve_path=True),
    help="The file of API keys.",
)


@click.group()
def keys() -> None:
    """Manage the API keys of gateways in a file.

    Gateways with A2A_AUTH_API_KEYS_FILE read the file again within seconds after a change.
    """


@keys.command()
@click.argument("owner")
@click.option("--tenant", "tenants", multiple=True, help="A tenant that the key may use. Default: all tenants.")
@click.option("--another", is_flag=True, help="Add a further key to the keys of OWNER.")
@file_option
def add(owner: str, tenants: tuple[str, ...], another: bool, path: Path) -> None:
    """Create a key for OWNER, print the key, and add its hash to the file.

    The key is not stored, so it cannot be printed again.
    """
    key = secrets.token_urlsafe(32)
    key_hash = sha256(key.encode()).hexdigest()
    entry = ":".join((owner, "sha256", key_hash, *([",".join(tenants)] if tenants else [])))
    _require_names(owner, tenants, entry)
    with _locked(path):
        text = _read(path)
        if not another and any(identity.owner == owner for identity in _identities(text, path).values()):
            raise click.ClickException(f"{owner} has a key in {path}: add a further one with --another, or remove it")
        _write(path, f"{text}{'' if not text or text.endswith(chr(10)) else chr(10)}{entry}\n")
    click.echo(key)
    click.echo(f"added a key of {owner} to {path}; the key is not shown again", err=True)


@keys.command(name="list")
@file_option
def list_(path: Path) -> None:
    """List the owners of the keys, the beginnings of the keys' hashes, and the allowed tenants."""
    identities = _identities(_read(path), path)
    if not identities:
        click.echo(f"no keys in {path}", err=True)
    for key_hash, identity in identities.items():
        tenants = "all tenants" if identity.tenants is None else ",".join(sorted(identity.tenants))
        click.echo(f"{identity.owner}  {key_hash.hex()[:SHOWN_DIGITS]}  {tenants}")


@keys.command()
@click.argument("owner")
@click.option("--hash", "digits", default="", help="The beginning of the key's hash. Default: all keys of OWNER.")
@file_option
def remove(owner: str, digits: str, path: Path) -> None:
    """Remove the keys of OWNER from the file."""
    with _locked(path):
        text = _read(path)
        identities = _identities(text, path)
        removed = {
            key_hash.hex()
            for key_hash, identity in identities.items()
            if identity.owner == owner and key_hash.hex().startswith(digits.lower())
        }
        if not removed:
            raise click.ClickException(f"{path} has no such key of {owner}: see a2a-celery keys list")
        if len(removed) == len(identities):
            text = "gateways keep the previous keys if the file is empty: add another key first"
            raise click.ClickException(f"{path} would have no keys, and {text}, or unset {VARIABLE}")
        _write(path, "".join(_without(line, removed) for line in text.splitlines(keepends=True)))
    click.echo(f"removed {len(removed)} key{'s' if len(removed) > 1 else ''} of {owner} from {path}", err=True)


def _require_names(owner: str, tenants: tuple[str, ...], entry: str) -> None:
    """Raise an error unless the names can be part of an entry.

    Raises:
        click.UsageError: A name is invalid.
    """
    for tenant in tenants:
        if (
            not tenant
            or "," in tenant
            or not tenant.isprintable()
            or ENTRY.fullmatch(f"a:sha256:{'0' * 64}:{tenant}") is None
        ):
            raise click.UsageError(f"the tenant {tenant!r} must have no space, colon or comma, and must not be empty")
    try:
        identities_of([entry])
    except ConfigError:
        limit = f"at most {MAX_OWNER_LENGTH} printable characters"
        raise click.UsageError(f"the owner {owner!r} must have no space or colon, and {limit}") from None


def _identities(text: str, path: Path) -> dict[bytes, Identity]:
    try:
        return identities_of(text.removeprefix(BOM).split())
    except ConfigError as e:
        raise click.ClickException(f"{path}: {e}") from e


def _without(line: str, hashes: set[str]) -> str:
    """Return `line` without the entries that have one of the hashes. A line that becomes empty is removed."""
    entries = line.removeprefix(BOM).split()
    others = [entry for entry in entries if (match := ENTRY.fullmatch(entry)) and match["hash"].lower() not in hashes]
    if len(others) == len(entries):
        return line
    return " ".join(others) + "\n" if others else ""


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except UnicodeDecodeError:
        raise click.ClickException(f"{path}: the file is not UTF-8 text") from None
    except OSError as e:
        raise click.ClickException(f"{path}: {e.strerror}") from e


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lock the folder of the file, so that only one command changes the file at a time.

    Raises:
        click.ClickException: The file system reports an error, also inside the ``with`` block.
    """
    try:
        fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)
    except OSError as e:
        raise click.ClickException(f"{e.filename or path}: {e.strerror}") from e


def _write(path: Path, text: str) -> None:
    """Replace the file atomically. Its mode and its owner are kept; a new file is readable by its user only."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with open(fd, "w", encoding="utf-8") as file:
            with suppress(FileNotFoundError):
                status = path.stat()
                with suppress(PermissionError):  # only root may give files to other users
                    os.fchown(fd, status.st_uid, status.st_gid)
                os.fchmod(fd, status.st_mode & 0o777)
            file.write(text)
            file.flush()
            os.fsync(fd)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
