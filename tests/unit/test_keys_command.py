"""``a2a-celery keys``: the file of API keys, which several people and gateways use at once."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from a2a_celery.cli.main import main
from a2a_celery.gateway.auth.key_file import VARIABLE, identities_of
from tests.support.clients.credentials import api_key_entry

ANN, BEN = api_key_entry("ann", "one"), api_key_entry("ben", "two")


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Path of a file of API keys that does not exist, and to which the variable of gateways is set."""
    path = tmp_path / "api_keys"
    monkeypatch.setenv(VARIABLE, str(path))
    return path


def keys(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["keys", *arguments])


def test_a_key_is_printed_once_and_its_hash_is_stored(path: Path) -> None:
    result = keys("add", "alice", "--tenant", "acme", "--tenant", "beta")

    key = result.stdout.strip()
    assert len(key) >= 40
    assert path.read_text() == f"alice:sha256:{sha256(key.encode()).hexdigest()}:acme,beta\n"
    assert key not in result.stderr + keys("list").output
    assert (path.stat().st_mode & 0o777) == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["api_keys"]


@pytest.mark.parametrize("text", [f"{ANN}\n", ANN, f"\ufeff{ANN}\r\n"])
def test_a_key_is_added_on_a_line_of_its_own_and_the_mode_is_kept(path: Path, text: str) -> None:
    path.write_bytes(text.encode())
    path.chmod(0o640)

    assert keys("add", "ben").exit_code == 0

    content = path.read_text(encoding="utf-8-sig")
    assert [identity.owner for identity in identities_of(content.split()).values()] == ["ann", "ben"]
    assert content.splitlines()[0] == ANN
    assert (path.stat().st_mode & 0o777) == 0o640


def test_an_owner_gets_a_second_key_only_on_request(path: Path) -> None:
    path.write_text(f"{ANN}\n")

    refused = keys("add", "ann")
    assert refused.exit_code == 1
    assert f"ann has a key in {path}: add a further one with --another, or remove it" in refused.output
    assert path.read_text() == f"{ANN}\n"

    assert keys("add", "ann", "--another").exit_code == 0
    assert len(identities_of(path.read_text().split())) == 2


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("a:b",), "the owner 'a:b' must have no space or colon"),
        (("a b",), "the owner 'a b' must have no space or colon"),
        (("",), "the owner '' must have no space or colon"),
        (("a" * 257,), "at most 256 printable characters"),
        (("a\x07",), "at most 256 printable characters"),
        (("ann", "--tenant", "a,b"), "the tenant 'a,b' must have no space, colon or comma"),
        (("ann", "--tenant", "a b"), "the tenant 'a b' must have no space, colon or comma"),
        (("ann", "--tenant", ""), "must not be empty"),
    ],
)
def test_names_that_cannot_be_in_the_file_are_refused(path: Path, arguments: tuple[str, ...], error: str) -> None:
    result = keys("add", *arguments)

    assert result.exit_code == 2
    assert error in result.output
    assert not path.exists()


@pytest.mark.parametrize("command", [("add", "ben"), ("remove", "ann"), ("list",)])
def test_a_file_that_gateways_would_refuse_is_not_changed(path: Path, command: tuple[str, ...]) -> None:
    path.write_text(f"{ANN}\nsecret-in-the-wrong-place\n")

    result = keys(*command)

    assert result.exit_code == 1
    assert f"{path}: a2a_auth_api_keys: entry 2 is not owner:sha256:" in result.output
    assert "secret-in-the-wrong-place" not in result.output
    assert path.read_text() == f"{ANN}\nsecret-in-the-wrong-place\n"


def test_keys_are_listed_without_their_complete_hashes(path: Path) -> None:
    path.write_text(f"{ANN}:acme\n{BEN}\n")

    output = keys("list").output

    assert re.fullmatch(r"ann  [0-9a-f]{12}  acme\nben  [0-9a-f]{12}  all tenants\n", output)


def test_keys_of_an_owner_are_removed_all_or_one(path: Path) -> None:
    second = api_key_entry("ann", "three")
    path.write_text(f"{ANN} {BEN}\n{second}:acme\n")

    assert keys("remove", "ann", "--hash", second.split(":")[2][:12]).exit_code == 0
    assert path.read_text() == f"{ANN} {BEN}\n"

    assert keys("remove", "ann").exit_code == 0
    assert path.read_text() == f"{BEN}\n"

    last = keys("remove", "ben")
    assert last.exit_code == 1
    assert "would have no keys" in last.output
    assert keys("remove", "nobody").exit_code == 1
    assert path.read_text() == f"{BEN}\n"


def test_two_commands_at_once_lose_no_key(path: Path) -> None:
    """The lock of the folder belongs to an open file, so it excludes threads as it excludes processes."""
    owners = [f"owner{number:02}" for number in range(16)]

    def add_key(owner: str) -> None:
        main.main(["keys", "add", owner, "--file", str(path)], standalone_mode=False)

    with ThreadPoolExecutor(len(owners)) as threads:
        list(threads.map(add_key, owners))

    assert sorted(identity.owner for identity in identities_of(path.read_text().split()).values()) == owners


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    result = keys("add", "ann", "--file", str(tmp_path / "none" / "api_keys"))

    assert result.exit_code == 1
    assert f"Error: {tmp_path}/none: No such file or directory" in result.output
