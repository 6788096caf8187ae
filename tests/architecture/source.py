"""Parsed source code of the project, for the architecture tests."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "a2a_celery"

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """Python file."""

    path: Path

    @property
    def name(self) -> str:
        """Path from the root, such as "a2a_celery/store/keys.py"."""
        return self.path.relative_to(ROOT).as_posix()

    @property
    def name_parts(self) -> list[str]:
        """Parts of the module's name, such as ["a2a_celery", "store", "keys"]. "__init__" is omitted."""
        parts = list(self.path.relative_to(ROOT).with_suffix("").parts)
        return parts[:-1] if parts[-1] == "__init__" else parts

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @property
    def tree(self) -> ast.Module:
        return parse(self.path)

    @property
    def nodes(self) -> tuple[ast.AST, ...]:
        """All nodes of the syntax tree."""
        return walk(self.path)

    @property
    def lines(self) -> int:
        return len(self.text.splitlines())

    def mentions(self, words: Iterable[str]) -> bool:
        """Return True if the text contains one of `words`. A file without them need not be parsed."""
        return any(word in self.text for word in words)

    def functions(self) -> Iterator[FunctionNode]:
        """Yield every function and method, including nested ones."""
        for node in self.nodes:
            if isinstance(node, FunctionNode):
                yield node

    def calls(self, *names: str) -> Iterator[ast.Call]:
        """Yield the calls to functions and methods that have one of `names`."""
        for node in self.nodes if self.mentions(names) else ():
            if isinstance(node, ast.Call) and last_name(node.func) in names:
                yield node

    @cached_property
    def imports(self) -> list[tuple[str, bool]]:
        """Absolute, dotted name of each import, and whether the import is only for type checkers."""
        for_types = {
            id(inner)
            for node in self.nodes
            if isinstance(node, ast.If) and last_name(node.test) == "TYPE_CHECKING"
            for inner in ast.walk(node)
        }
        return [(name, id(node) in for_types) for node in self.nodes for name in self._named_by(node)]

    def _named_by(self, node: ast.AST) -> list[str]:
        if isinstance(node, ast.Import):
            return [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            base = [] if node.module is None else node.module.split(".")
            if node.level:
                package = self.name_parts if self.path.name == "__init__.py" else self.name_parts[:-1]
                base = [*package[: len(package) - node.level + 1], *base]
            return [".".join([*base, alias.name]) for alias in node.names]
        return []


def last_name(node: ast.expr) -> str:
    """Return the name of a variable or an attribute, or "" for any other expression."""
    match node:
        case ast.Name(name) | ast.Attribute(attr=name):
            return name
    return ""


@cache
def parse(path: Path) -> ast.Module:
    """Return the syntax tree of a file. The tests of this folder share it."""
    gc.disable()  # CPython 3.11 raises SystemError if a finalizer runs Python code while the tree is built
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    finally:
        gc.enable()


@cache
def walk(path: Path) -> tuple[ast.AST, ...]:
    """Return all nodes of a file's syntax tree. A list is read ten times as fast as a tree is walked."""
    return tuple(ast.walk(parse(path)))


@cache
def modules(folder: str) -> tuple[Module, ...]:
    """Return all Python files in a folder of the project."""
    return tuple(Module(path) for path in sorted((ROOT / folder).rglob("*.py")))
