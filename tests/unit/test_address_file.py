"""Address file of ``a2a dev``: its folder, its permissions, and the recognition of a supervisor that was killed."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from celery import Celery

from a2a_celery.cli.app_loader import dev_url, join_dev
from a2a_celery.cli.dev.address_file import NAME, RUNTIME_FOLDER, AddressFile, DevAddresses, StaleAddresses
from a2a_celery.errors import ConfigError
from tests.support import ROOT
from tests.support.waiting import LIMIT

STORE_URL = "redis://127.0.0.1:1/0"
ADDRESSES = DevAddresses("http://127.0.0.1:8001", None, {"A2A_STORE_URL": STORE_URL, "A2A_LEASE_TTL": "7"})

KILLED_SUPERVISOR = """
import os, signal
from pathlib import Path
from celery import Celery
from a2a_celery.cli.dev.address_file import AddressFile, DevAddresses
assert AddressFile(Celery("acme"), Path.cwd()).write(DevAddresses("http://127.0.0.1:1", None, {}))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runtime folder of the user. The current folder is the folder of a project."""
    folder, project = tmp_path / "runtime", tmp_path / "project"
    folder.mkdir(mode=0o700)
    project.mkdir()
    monkeypatch.setenv(RUNTIME_FOLDER, str(folder))
    monkeypatch.chdir(project)
    for variable in ADDRESSES.variables:  # at the end of the test, the variables are unset again
        monkeypatch.setenv(variable, "")
        monkeypatch.delenv(variable)
    return folder


def app_named(name: str) -> Celery:
    return Celery(name, set_as_current=False)


def file_of(name: str, folder: Path | None = None) -> AddressFile:
    return AddressFile(app_named(name), folder or Path.cwd())


def kill_supervisor() -> None:
    """Write the address file of the app ``acme`` in a process that SIGKILL ends."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run([sys.executable, "-c", KILLED_SUPERVISOR], env=env, timeout=LIMIT, check=False)
    assert result.returncode == -9


def test_the_file_is_private_and_is_removed_at_the_end(runtime: Path) -> None:
    file = file_of("acme")

    assert file.write(ADDRESSES)

    assert file.path.parent == runtime / NAME
    assert [stat.S_IMODE(path.stat().st_mode) for path in (file.path, file.path.parent)] == [0o600, 0o700]
    assert file_of("acme").read() == ADDRESSES
    file.remove()
    assert list(file.path.parent.iterdir()) == []
    assert file_of("acme").read() is None


def test_without_a_runtime_folder_the_file_is_below_the_temporary_folder(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(RUNTIME_FOLDER)
    monkeypatch.setattr("tempfile.tempdir", str(runtime))
    file = file_of("acme")

    assert file.write(ADDRESSES)
    assert file.path.parent == runtime / f"{NAME}-{os.getuid()}"
    assert stat.S_IMODE(file.path.parent.stat().st_mode) == 0o700
    file.remove()


def test_fleets_of_several_apps_and_folders_have_separate_files(runtime: Path, tmp_path: Path) -> None:
    files = [file_of("acme"), file_of("shop"), file_of("acme", tmp_path)]

    for number, file in enumerate(files):
        assert file.write(DevAddresses(f"http://127.0.0.1:{number}", None, {}))

    urls = [addresses.url for file in files if (addresses := file.read()) is not None]
    assert urls == ["http://127.0.0.1:0", "http://127.0.0.1:1", "http://127.0.0.1:2"]
    for file in files:
        file.remove()


def test_a_second_supervisor_of_an_app_leaves_the_file_of_the_first(runtime: Path) -> None:
    first, second = file_of("acme"), file_of("acme")
    assert first.write(ADDRESSES)

    assert not second.write(DevAddresses("http://127.0.0.1:9", None, {}))
    second.remove()

    assert file_of("acme").read() == ADDRESSES
    first.remove()


def test_the_file_of_a_killed_supervisor_is_reported_once_and_removed(
    runtime: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kill_supervisor()
    path = file_of("acme").path
    assert path.exists()

    assert dev_url(app_named("acme")) is None

    assert capsys.readouterr().err == (
        f"note: a2a dev of this app was killed and left {path}: its addresses are ignored\n"
    )
    assert not path.exists()
    assert dev_url(app_named("acme")) is None
    assert capsys.readouterr().err == ""


def test_a_new_supervisor_replaces_the_file_of_a_killed_one(runtime: Path) -> None:
    kill_supervisor()
    file = file_of("acme")

    assert file.write(ADDRESSES)
    assert file_of("acme").read() == ADDRESSES
    file.remove()


def open_folder(file: AddressFile) -> None:
    file.path.parent.chmod(0o755)


def link_folder(file: AddressFile) -> None:
    folder = file.path.parent
    folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to(folder.with_name("elsewhere"))


def link_file(file: AddressFile) -> None:
    file.path.rename(file.path.with_name("elsewhere"))
    file.path.symlink_to(file.path.with_name("elsewhere"))


def open_file(file: AddressFile) -> None:
    file.path.chmod(0o644)


@pytest.mark.parametrize("expose", [open_folder, link_folder, link_file, open_file])
def test_a_file_that_another_user_could_have_written_is_not_read(
    runtime: Path, expose: Callable[[AddressFile], None]
) -> None:
    file = file_of("acme")
    assert file.write(ADDRESSES)
    expose(file)

    with pytest.raises(ConfigError, match=str(runtime)) as refusal:
        file_of("acme").read()
    assert not isinstance(refusal.value, StaleAddresses)
    file.remove()


def test_a_command_joins_the_fleet_and_keeps_variables_that_are_set(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = file_of("acme")
    assert file.write(ADDRESSES)
    monkeypatch.setenv("A2A_LEASE_TTL", "9")

    join_dev(app_named("acme"))

    assert (os.environ["A2A_STORE_URL"], os.environ["A2A_LEASE_TTL"]) == (STORE_URL, "9")
    assert dev_url(app_named("acme")) == "http://127.0.0.1:8001"
    assert dev_url(app_named("shop")) is None
    file.remove()


@pytest.mark.parametrize(
    ("environ", "conf", "source"),
    [
        ({"A2A_STORE_URL": "redis://h/1"}, {}, "A2A_STORE_URL in the environment"),
        ({}, {"a2a_store_url": "redis://h/1"}, "a2a_store_url in the Celery configuration"),
        ({}, {"broker_url": "redis://h/1"}, "broker_url in the Celery configuration"),
    ],
)
def test_a_configured_store_is_preferred_and_the_fleet_is_named(
    runtime: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    environ: dict[str, str],
    conf: dict[str, str],
    source: str,
) -> None:
    file, app = file_of("acme"), app_named("acme")
    app.conf.update(conf)
    assert file.write(ADDRESSES)
    for variable, value in environ.items():
        monkeypatch.setenv(variable, value)

    join_dev(app)

    assert os.environ.get("A2A_STORE_URL") == environ.get("A2A_STORE_URL")
    assert "A2A_LEASE_TTL" not in os.environ
    assert dev_url(app) is None
    assert capsys.readouterr().err == (
        f"note: a2a dev of this app runs at {ADDRESSES.url}, but this command uses another store, from {source}\n"
    )
    file.remove()
