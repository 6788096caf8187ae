"""docs/glossary.md and the code use the same words."""

from __future__ import annotations

import ast
import re

from .source import PACKAGE, ROOT, FunctionNode, modules

PENDING = {
    "behind",
    "bell",
    "figure",
    "figures",
    "guest",
    "hear",
    "heard",
    "letter",
    "news",
    "noted",
    "noting",
    "patience",
    "patiently",
    "refusals",
    "ring",
    "room",
    "taken",
    "told",
    "waker",
}
"""Words that names in the code still contain."""


def avoided_words() -> set[str]:
    """Return the words in the last column of the glossary."""
    page = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    rows = [line.strip("|").split("|") for line in page.splitlines() if line.startswith("| ")][2:]
    return {word.strip() for row in rows for word in row[2].split(",")} - {""}


def names() -> dict[str, set[str]]:
    """Return the modules that define a name, by the name: modules, classes, functions and arguments."""
    found: dict[str, set[str]] = {}
    for module in modules(PACKAGE):
        defined = {module.path.stem}
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef | FunctionNode):
                defined.add(node.name)
            elif isinstance(node, ast.arg):
                defined.add(node.arg)
        for name in defined:
            found.setdefault(name, set()).add(module.name)
    return found


def words(name: str) -> set[str]:
    """Return the words of a name: "StepRecorder" has "step" and "recorder"."""
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


def test_no_name_contains_a_word_that_the_glossary_replaces() -> None:
    avoided = avoided_words()
    offending = {name: sorted(where) for name, where in names().items() if words(name) & avoided - PENDING}

    assert avoided
    assert offending == {}


def test_each_term_is_defined_once() -> None:
    page = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    terms = re.findall(r"^\| ([^|]+?) \|", page, re.MULTILINE)[2:]

    assert len(terms) == len(set(terms))
