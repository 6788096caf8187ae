"""Detection of changes of an app's Python files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from a2a_celery.cli.dev import code_watcher
from a2a_celery.cli.dev.code_watcher import changed_files, require_watchfiles, syntax_error
from a2a_celery.errors import ConfigError
from tests.support.waiting import LIMIT


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("acme", ".git", "node_modules", "env/lib/python3.13/site-packages", "env/bin"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "env" / "pyvenv.cfg").write_text("")
    (tmp_path / "acme" / "agents.py").write_text("a = 1")
    (tmp_path / "app.py").write_text("b = 1")
    return tmp_path


class Watch:
    """Watch of a folder whose next changes can be awaited."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._changes: AsyncIterator[list[Path]] = changed_files(folder)
        self._next = asyncio.ensure_future(anext(self._changes))

    async def ready(self) -> None:
        """Return when the folder is watched: one iteration of the loop creates the watch."""
        await asyncio.sleep(0)

    async def next(self) -> list[str]:
        async with asyncio.timeout(LIMIT):
            paths = await self._next
        self._next = asyncio.ensure_future(anext(self._changes))
        return [str(path.relative_to(self._folder)) for path in paths]

    async def stop(self) -> None:
        self._next.cancel()
        await asyncio.gather(self._next, return_exceptions=True)


@pytest.fixture
async def watch(folder: Path) -> AsyncIterator[Watch]:
    watch = Watch(folder)
    await watch.ready()
    yield watch
    await watch.stop()


async def test_changed_added_and_removed_files_are_reported_together(folder: Path, watch: Watch) -> None:
    (folder / "acme" / "agents.py").write_text("a = 22")
    (folder / "acme" / "new.py").write_text("")
    (folder / "app.py").unlink()

    assert await watch.next() == ["acme/agents.py", "acme/new.py", "app.py"]


async def test_a_file_that_is_replaced_by_another_of_the_same_size(folder: Path, watch: Watch) -> None:
    (folder / "app.py.tmp").write_text("b = 2")
    (folder / "app.py.tmp").rename(folder / "app.py")

    assert await watch.next() == ["app.py"]


async def test_changes_are_reported_one_after_the_other(folder: Path, watch: Watch) -> None:
    (folder / "app.py").write_text("b = 22")
    assert await watch.next() == ["app.py"]

    (folder / "acme" / "agents.py").write_text("a = 22")
    assert await watch.next() == ["acme/agents.py"]


@pytest.mark.parametrize("name", [".git", "node_modules", "env/lib/python3.13/site-packages", "env/bin"])
async def test_files_that_are_not_the_apps_are_not_watched(folder: Path, watch: Watch, name: str) -> None:
    (folder / name / "other.py").write_text("")
    (folder / "notes.txt").write_text("")
    (folder / "acme" / "agents.py").write_text("a = 22")

    assert await watch.next() == ["acme/agents.py"]


async def test_a_folder_that_cannot_be_watched_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def awatch(*_: object, **options: object) -> AsyncIterator[object]:
        assert options["ignore_permission_denied"] is True
        raise OSError("OS file watch limit reached")
        yield

    monkeypatch.setattr("watchfiles.awatch", awatch)

    with pytest.raises(ConfigError, match=r"\(OS file watch limit reached\): set WATCHFILES_FORCE_POLLING=true"):
        await anext(changed_files(tmp_path))


def test_without_watchfiles_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_watcher, "find_spec", lambda _: None)

    with pytest.raises(ConfigError, match=r"--reload needs watchfiles: pip install 'a2a-celery\[reload\]'"):
        require_watchfiles()
    assert find_spec("watchfiles") is not None


def test_a_syntax_error_is_shown_with_its_line(tmp_path: Path) -> None:
    code = tmp_path / "app.py"
    code.write_text("a = 1\nb = (\n")

    assert syntax_error(code).splitlines() == [
        f'  File "{code}", line 2',
        "    b = (",
        "        ^",
        "SyntaxError: '(' was never closed",
    ]


def test_a_file_that_compiles_or_was_removed_has_no_syntax_error(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("import no_such_module\n")

    assert syntax_error(tmp_path / "app.py") == ""
    assert syntax_error(tmp_path / "removed.py") == ""
