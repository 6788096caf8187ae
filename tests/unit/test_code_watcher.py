"""File watcher for an app's Python files."""

from __future__ import annotations

from pathlib import Path

import pytest

from a2a_celery.cli.dev.code_watcher import CodeWatcher, syntax_error


def wait_for_changes(watcher: CodeWatcher) -> list[str]:
    """Poll until no further file changes, and return the changed files."""
    assert watcher.poll() == []
    return [str(path) for path in watcher.poll()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "acme").mkdir()
    (tmp_path / "acme" / "agents.py").write_text("a = 1")
    (tmp_path / "app.py").write_text("b = 1")
    return tmp_path


def test_changed_added_and_removed_files_are_reported_once(folder: Path) -> None:
    watcher = CodeWatcher(folder)
    assert wait_for_changes(watcher) == []

    (folder / "acme" / "agents.py").write_text("a = 22")
    (folder / "acme" / "new.py").write_text("")
    (folder / "app.py").unlink()

    assert wait_for_changes(watcher) == ["acme/agents.py", "acme/new.py", "app.py"]
    assert wait_for_changes(watcher) == []


def test_a_file_that_is_replaced_by_another_of_the_same_size(folder: Path) -> None:
    watcher = CodeWatcher(folder)
    (folder / "app.py.tmp").write_text("b = 2")

    (folder / "app.py.tmp").rename(folder / "app.py")

    assert wait_for_changes(watcher) == ["app.py"]


def test_changes_are_collected_until_a_poll_finds_no_more(folder: Path) -> None:
    watcher = CodeWatcher(folder)

    (folder / "app.py").write_text("b = 22")
    assert watcher.poll() == []
    (folder / "acme" / "agents.py").write_text("a = 22")

    assert wait_for_changes(watcher) == ["acme/agents.py", "app.py"]


@pytest.mark.parametrize("name", ["__pycache__", ".git", "node_modules", "env/lib/python3.13/site-packages", "env/bin"])
def test_files_that_are_not_the_apps_are_not_watched(folder: Path, name: str) -> None:
    (folder / name).mkdir(parents=True)
    (folder / "env").mkdir(exist_ok=True)
    (folder / "env" / "pyvenv.cfg").write_text("")
    watcher = CodeWatcher(folder)

    (folder / name / "other.py").write_text("")
    (folder / "notes.txt").write_text("")

    assert wait_for_changes(watcher) == []


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
