"""Tables for people: whole where they are read by programs, no wider than a terminal on one."""

from __future__ import annotations

import os
import shutil
import sys

import pytest

from a2a_celery.cli.show import table

ROWS = [("a", "short"), ("b", "x" * 40)]


def test_a_pipe_gets_whole_lines() -> None:
    assert list(table(("NAME", "WHAT"), ROWS)) == ["NAME  WHAT", "a     short", f"b     {'x' * 40}"]


def test_a_terminal_gets_lines_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: os.terminal_size((20, 24)))

    assert list(table(("NAME", "WHAT"), ROWS)) == ["NAME  WHAT", "a     short", f"b     {'x' * 13}…"]
