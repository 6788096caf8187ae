"""Completeness of docs/errors.md: reasons of protocol errors, texts of terminal tasks, exceptions, and generated
lists."""

from __future__ import annotations

import ast
import re
from types import ModuleType

import pytest

import a2a_celery
from a2a_celery import client, errors, testing
from a2a_celery.client import calling, notifications
from tests.support import ROOT
from tests.support.clients.faults import CODES
from tests.support.docs_modules import load_docs_module
from tests.unit.test_docs import SENTENCES, states_in_code

PAGE = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
EXPORTING = (errors, client, calling, notifications, testing, a2a_celery)
INTERNAL = {
    "BlobMissing": "handled by gateways and workers as BlobsUnavailable",
    "LogIncomplete": "ends the read of a deleted task",
    "NotSealedHere": "logged by watchers",
    "PublicationFailed": "handled by watchers",
    "RunNotAccepted": "handled by watchers as BrokerUnavailable",
    "StaleAddresses": "reported by commands as a note",
    "SuspendRun": "raised by Turn.sleep and Turn.wait_for, and not to be caught",
}
"""Exceptions that no user handles, with the reason."""


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    return load_docs_module("error_tables")


@pytest.fixture(scope="module")
def built_page(tables: ModuleType) -> str:
    """Markdown of docs/errors.md, as built for the site."""
    page: str = tables.with_texts(PAGE)
    return page


def cells_after(marker: str) -> dict[str, list[str]]:
    """Return the rows of the table after the comment `marker`, by the unquoted first cell."""
    table = PAGE.partition(f"<!-- {marker}: ")[2].partition("-->\n")[2].partition("\n\n")[0].splitlines()[2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    cells = {first.strip('`"'): row_cells for first, *row_cells in rows}
    assert len(cells) == len(rows)
    return cells


def documented_classes(tables: ModuleType) -> set[str]:
    """Return the name of each public exception in a2a_celery that derives from `A2ACeleryError` or `EndRun`."""
    bases: dict[str, set[str]] = {}
    for path in (ROOT / "a2a_celery").rglob("*.py"):
        for node in ast.walk(tables.syntax_tree(path)):
            if isinstance(node, ast.ClassDef):
                bases[node.name] = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
    names = {"A2ACeleryError", "EndRun"}
    while subclasses := {name for name, parents in bases.items() if parents & names} - names:
        names |= subclasses
    return {name for name in names if not name.startswith("_")} - {"EndRun", *INTERNAL}


def test_each_protocol_error_has_a_cause_and_a_remedy(tables: ModuleType) -> None:
    rows = cells_after("reasons")

    assert set(rows) == {reason for reason, *_ in tables.codes()}
    assert [reason for reason, cells in rows.items() if not all(cells)] == []


def test_the_codes_are_those_that_clients_receive(tables: ModuleType) -> None:
    """tests/acceptance/test_error_table.py compares `CODES` with responses."""
    codes = {reason: (code, http, grpc) for reason, code, http, grpc in tables.codes()}

    assert codes.pop("INVALID_JSON")[0] == -32700
    assert codes.pop("LIMIT_EXCEEDED") == (-32603, "429", "RESOURCE_EXHAUSTED")
    assert codes == {reason: (code, str(http), grpc) for reason, (code, http, grpc) in CODES.items()}


def test_the_table_of_codes_is_that_of_the_code(tables: ModuleType) -> None:
    """Compare the table with the output of ``python docs/error_tables.py``."""
    table = PAGE.partition("<!-- codes: ")[2].partition("-->\n")[2].partition("\n\n")[0]

    assert table.splitlines() == list(tables.codes_table())


def test_each_text_of_an_end_has_its_state() -> None:
    rows, states = cells_after("ends"), states_in_code()

    assert set(rows) == set(SENTENCES.values())
    assert {text: rows[text][0] for text in states} == states


def test_each_exception_is_listed(tables: ModuleType) -> None:
    rows = cells_after("exceptions")
    others = {"StepsChanged", "AnswerRefused", "LimitExceededError"}

    assert set(rows) == documented_classes(tables) | others
    for name in rows:
        modules = [module for module in EXPORTING if hasattr(module, name)]
        assert issubclass(getattr(modules[0], name), BaseException), name


def test_each_marker_is_replaced_by_a_list(tables: ModuleType, built_page: str) -> None:
    assert set(re.findall(r"<!-- generated: (.+?) -->", PAGE)) == set(tables.TEXTS)
    assert "<!-- generated" not in built_page
    for text in (
        "- `message.role: Must be ROLE_USER in a client's message.`",
        "- `a2a_auth_jwt_key is a private key: set the public key instead`",
        "- `--stuck selects the states itself: leave out --state`",
    ):
        assert text in built_page


def test_the_lists_name_each_package_that_refuses_a_start(built_page: str) -> None:
    packages = {
        path.relative_to(ROOT / "a2a_celery").parts[0].removesuffix(".py")
        for path in (ROOT / "a2a_celery").rglob("*.py")
        if "raise ConfigError(\n" in path.read_text(encoding="utf-8")
    }

    assert {package for package in packages if f"#### a2a_celery.{package}\n" not in built_page} == set()


def test_the_site_does_not_refer_to_itself(built_page: str) -> None:
    assert "documentation site" in PAGE
    assert "documentation site" not in built_page
