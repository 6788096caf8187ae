"""Comparison of the names in the code with docs/glossary.md."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from .source import PACKAGE, ROOT, FunctionNode, modules

CORE_TERMS = 43
"""Number of terms of the core, which fit on one page. The number may only fall."""

PLACES = {
    "activity": ("lifecycle/execution.py", "execution/events/", "store/runs/", "frameworks/conversation.py"),
    "answer": ("features/questions/", "lifecycle/answers.py", "client/input_request.py"),
    "scope": ("lifecycle/references.py", "gateway/shutdown.py"),  # a cancel scope
    "signal": ("lifecycle/signals.py", "operations/signals.py", "store/tasks/signals.py", "errors.py"),
    "step": (
        "features/steps/",
        "errors.py",
        "execution/celery/reconnect.py",  # a bootstep of Celery
        "frameworks/adk.py",  # a public name
    ),
    "version": ("store/runs/commands.py", "store/admin/version_workers.py"),  # the version of an agent's code
}
"""Beginnings of the files whose classes may have the word in their names, because there the word has the meaning that
the glossary defines, or the meaning in a library."""


def table(heading: str) -> list[list[str]]:
    """Return the cells of the rows below a heading of the glossary, without the header of the table."""
    page = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    section = page.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")][2:]
    return [[cell.strip() for cell in line.removesuffix("|").removeprefix("|").split("|")] for line in lines]


def avoided_words() -> dict[str, set[str]]:
    """Return the words in the last column of the glossary, each with the words of the term that replaces it."""
    rows = ((row[0], row[-1]) for heading in ("Core", "Features") for row in table(heading))
    return {word.strip(): set(term.split()) for term, words in rows for word in words.split(",") if word.strip()}


def uses(name: str, word: str, term: set[str]) -> bool:
    """Return True if a name contains the word outside the term, such as "letter" outside of "dead_letter"."""
    return word in words(name) and not (word in term and term <= words(name))


def names() -> dict[str, set[str]]:
    """Return all names of modules, classes, functions and arguments, each with the modules that define it."""
    modules_by_name: dict[str, set[str]] = {}
    for module in modules(PACKAGE):
        names = {module.path.stem}
        for node in module.nodes:
            if isinstance(node, ast.ClassDef | FunctionNode):
                names.add(node.name)
            elif isinstance(node, ast.arg):
                names.add(node.arg)
        for name in names:
            modules_by_name.setdefault(name, set()).add(module.name)
    return modules_by_name


@cache
def words(name: str) -> frozenset[str]:
    """Return the words of a name: "ActivityRecorder" has "step" and "recorder"."""
    return frozenset(word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name))


def test_no_name_contains_a_word_that_the_glossary_replaces() -> None:
    replacements = avoided_words()
    offending = {
        name: sorted(modules_of_name)
        for name, modules_of_name in names().items()
        if any(uses(name, word, term) for word, term in replacements.items())
    }

    assert replacements
    assert offending == {}


def test_each_term_is_defined_once() -> None:
    terms = [row[0] for heading in ("Core", "Features") for row in table(heading)]

    assert len(terms) == len(set(terms))


def test_the_terms_of_the_core_become_fewer() -> None:
    assert len(table("Core")) == CORE_TERMS


def test_a_term_of_a_feature_names_its_feature() -> None:
    features = {path.parent.name for path in (ROOT / PACKAGE / "features").glob("*/__init__.py")}

    assert {row[1].strip("`") for row in table("Features")} <= features


def plural(word: str) -> str:
    return word.removesuffix("y") + "ies" if word.endswith("y") else f"{word}s"


@pytest.mark.parametrize("word", PLACES)
def test_a_word_names_one_thing(word: str) -> None:
    places = tuple(f"{PACKAGE}/{place}" for place in PLACES[word])
    classes = {
        (module.name, node.name)
        for module in modules(PACKAGE)
        for node in module.nodes
        if isinstance(node, ast.ClassDef) and words(node.name) & {word, plural(word)}
    }

    assert {(module, name) for module, name in classes if not module.startswith(places)} == set()
    assert {place for place in places if not any(module.startswith(place) for module, _ in classes)} == set()
