"""Examples in docs/testing-agents.md. They run as a user's project in a pytest session with the plugin."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import defaultdict
from importlib.metadata import entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "testing-agents.md").read_text(encoding="utf-8")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Folder with the files of the documentation page."""
    files: dict[str, str] = defaultdict(str)
    for name, code in re.findall(r"<!-- file: (\S+) -->\n```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        files[name] += code + "\n\n"
    [ini] = re.findall(r"```ini\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    for name, content in {**files, "pytest.ini": ini}.items():
        (tmp_path / name).write_text(content)
    return tmp_path


def run_pytest(project: Path, *arguments: str, other_plugins: bool = True) -> str:
    """Run pytest in the project, and return its output.

    Load the plugin explicitly if no entry point is installed, or if pytest must load no `other_plugins`, whose imports
    take seconds.
    """
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "A2A_", "CELERY_"))}
    env["PYTHONPATH"] = f"{ROOT}{os.pathsep}{project}"
    if not other_plugins:
        env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    has_entry_point = other_plugins and "pytest_a2a_celery" in _entry_points()
    plugin = [] if has_entry_point else ["-p", "pytest_a2a_celery"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *plugin, *arguments]
    process = subprocess.run(command, cwd=project, env=env, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


def _entry_points() -> set[str]:
    return {entry.value for entry in entry_points(group="pytest11")}


@pytest.mark.merge
def test_the_examples_of_the_tester(project: Path) -> None:
    assert "7 passed" in run_pytest(project, "test_hotels.py")


@pytest.mark.merge
def test_the_examples_of_the_fixtures(project: Path) -> None:
    assert "2 passed" in run_pytest(project, "test_fleet.py")


def test_the_plugin_imports_nothing_without_its_fixtures(project: Path) -> None:
    (project / "test_nothing.py").write_text(
        "import sys\n\ndef test_nothing():\n    assert not {'a2a_celery', 'a2a'} & sys.modules.keys()\n"
    )

    assert "1 passed" in run_pytest(project, "test_nothing.py", other_plugins=False)
