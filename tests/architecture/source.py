"""Source of the project for the tests of its structure."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
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
        """Return its path from the root, such as "a2a_celery/store/keys.py"."""
        return self.path.relative_to(ROOT).as_posix()

    @property
    def dotted(self) -> list[str]:
        """Return its parts as a module, such as ["a2a_celery", "store", "keys"], without "__init__" for a package."""
        parts = list(self.path.relative_to(ROOT).with_suffix("").parts)
        return parts[:-1] if parts[-1] == "__init__" else parts

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def lines(self) -> int:
        return len(self.text.splitlines())

    def functions(self) -> Iterator[FunctionNode]:
        """Return every function and method, including nested ones."""
        for node in ast.walk(self.tree):
            if isinstance(node, FunctionNode):
                yield node

    def imports(self) -> Iterator[tuple[str, bool]]:
        """Yield its imports, absolute and dotted, and whether each is only for type checkers."""
        for_types = {
            id(inner)
            for node in ast.walk(self.tree)
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            for inner in ast.walk(node)
        }
        for node in ast.walk(self.tree):
            for name in self._named_by(node):
                yield name, id(node) in for_types

    def _named_by(self, node: ast.AST) -> list[str]:
        if isinstance(node, ast.Import):
            return [alias.name for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            base = [] if node.module is None else node.module.split(".")
            if node.level:
                here = self.dotted if self.path.name == "__init__.py" else self.dotted[:-1]
                base = [*here[: len(here) - node.level + 1], *base]
            return [".".join([*base, alias.name]) for alias in node.names]
        return []


def modules(*folders: str) -> list[Module]:
    """Return all Python files in these folders of the project."""
    return [Module(path) for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
