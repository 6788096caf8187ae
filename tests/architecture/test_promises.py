"""The ledger in tests/promises names a test for each promise of the pages, and only promises and tests that exist."""

from __future__ import annotations

import ast
from functools import cache

from tests.promises import LEDGER, STATEMENTS
from tests.promises.pages import promises, statements
from tests.support import ROOT


@cache
def names_of_tests(path: str) -> set[str]:
    """Return the names of the tests of a file below tests/, with the names of their classes."""
    file = ROOT / "tests" / path
    if not file.is_file():
        return set()
    module = ast.parse(file.read_text(encoding="utf-8"))
    groups = [("", module.body)]
    groups += [(f"{node.name}::", node.body) for node in module.body if isinstance(node, ast.ClassDef)]
    return {
        prefix + node.name
        for prefix, body in groups
        for node in body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }


def test_each_promise_of_a_page_is_in_the_ledger() -> None:
    assert [promise for promise in promises() if promise not in LEDGER and promise not in STATEMENTS] == []


def test_the_ledger_has_no_promise_that_no_page_contains() -> None:
    assert (LEDGER.keys() | STATEMENTS.keys()) - set(promises()) == set()
    assert LEDGER.keys() & STATEMENTS.keys() == set()


def test_each_promise_names_tests_that_exist() -> None:
    missing = {
        promise: [test for test in tests if test.partition("::")[2] not in names_of_tests(test.partition("::")[0])]
        for promise, tests in LEDGER.items()
    }

    assert {promise: tests for promise, tests in missing.items() if tests} == {}
    assert [promise for promise, tests in LEDGER.items() if not tests] == []


TEXT = """
- no bullet

## A [link](x.md)

| head | |
| --- | --- |
| row *one* | b |

| no table |
- two
  lines
"""


def test_statements_are_rows_and_bullets() -> None:
    assert list(statements(TEXT, with_bullets=False)) == [("A [link](x.md)", " row *one* ")]
    assert [text for _, text in statements(TEXT, with_bullets=True)] == ["no bullet ", " row *one* ", "two   lines"]
