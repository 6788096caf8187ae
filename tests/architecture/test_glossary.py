"""Comparison of the names in the code with docs/glossary.md."""

from __future__ import annotations

import ast
import re
from functools import cache

from .source import PACKAGE, ROOT, FunctionNode, modules


def avoided_words() -> dict[str, set[str]]:
    """Return the words in the last column of the glossary, each with the words of the term that replaces it."""
    page = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    rows = [line.strip("|").split("|") for line in page.splitlines() if line.startswith("| ")][2:]
    return {word.strip(): set(term.split()) for term, _, words in rows for word in words.split(",") if word.strip()}


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
    page = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    terms = re.findall(r"^\| ([^|]+?) \|", page, re.MULTILINE)[2:]

    assert len(terms) == len(set(terms))
