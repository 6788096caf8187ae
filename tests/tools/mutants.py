"""Mutants of Python and Lua sources, which differ from the source in one place, and samples of mutants."""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

PACKAGE = "a2a_celery"

FLIPS = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "~=": "==",
    "and": "or", "or": "and", "+": "-", "-": "+", "True": "False", "False": "True",
}  # fmt: skip
"""Replacements of tokens. In Lua, ``==`` is replaced by ``~=``."""


@dataclass(frozen=True, slots=True)
class Edit:
    """Mutation of a source.

    Attributes:
        operator: Kind of the mutation.
        start: Offset of the replaced text.
        end: Offset after the replaced text.
        replacement: New text.
        statement_lines: First and last line of the statement up to the edit, for a look-up in coverage data.
        in_function: The edit is within a function.
    """

    operator: str
    start: int
    end: int
    replacement: str
    statement_lines: tuple[int, int]
    in_function: bool = True

    def position(self, source: str) -> str:
        """Return "line:column", both from 1."""
        return f"{source.count(chr(10), 0, self.start) + 1}:{self.start - source.rfind(chr(10), 0, self.start)}"

    def apply(self, source: str) -> str:
        """Return the mutated source."""
        return source[: self.start] + self.replacement + source[self.end :]

    def lines(self, source: str) -> tuple[str, str]:
        """Return the edited lines before and after the mutation, without surrounding whitespace."""
        first = source.rfind("\n", 0, self.start) + 1
        last = source.find("\n", self.end)
        last = len(source) if last < 0 else last
        text_after = source[first : self.start] + self.replacement + source[self.end : last]
        return source[first:last].strip(), text_after.strip()


@dataclass(frozen=True)
class Mutant:
    """Mutation of a file. `path` is relative to the repository's root."""

    package: str
    path: str
    edit: Edit
    source: str = field(repr=False)

    @property
    def id(self) -> str:
        """Identifier of the mutant, valid as long as the file is unchanged."""
        return f"{self.path.removeprefix(PACKAGE + '/')}:{self.edit.position(self.source)}:{self.edit.operator}"


def mutants_in(root: Path, packages: Iterable[str]) -> dict[str, list[Mutant]]:
    """Return every mutant of each package or file below `PACKAGE`."""
    mutants_by_file: dict[str, list[Mutant]] = {}
    for package in packages:
        top = root / PACKAGE / package
        files = sorted(path for path in (top.rglob("*") if top.is_dir() else [top]) if path.suffix in {".py", ".lua"})
        mutants_by_file[package] = [
            Mutant(package, path.relative_to(root).as_posix(), edit, source)
            for path, source in ((path, path.read_text(encoding="utf-8")) for path in files)
            for edit in edits(source, path.suffix)
        ]
    return mutants_by_file


def sample(mutants: Mapping[str, Sequence[Mutant]], count: int, seed: int) -> list[Mutant]:
    """Draw `count` mutants, about the same number from each package, in random order."""
    generator = random.Random(seed)
    chosen_mutants: list[Mutant] = []
    for index, candidates in enumerate(mutants.values()):
        share = count // len(mutants) + (index < count % len(mutants))
        chosen_mutants += generator.sample(candidates, min(share, len(candidates)))
    generator.shuffle(chosen_mutants)
    return chosen_mutants


def edits(source: str, suffix: str) -> list[Edit]:
    """Return every mutation of a source in order. `suffix` is ".py" or ".lua"."""
    return sorted(
        set(_python(source) if suffix == ".py" else _lua(source)), key=lambda edit: (edit.start, edit.operator)
    )


def _python(source: str) -> Iterator[Edit]:
    mutator = _Python(source)
    mutator.visit(ast.parse(source))
    for edit in mutator.edits:
        try:
            compile(edit.apply(source), "<mutant>", "exec")
        except (SyntaxError, ValueError):
            continue
        yield edit


class _Python(ast.NodeVisitor):
    """Visitor that collects the edits of a module."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._lines = [f"{line}\n".encode() for line in source.split("\n")]
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line.decode()))
        self._statement: ast.stmt | None = None
        self._depth = 0
        self.edits: list[Edit] = []

    def visit(self, node: ast.AST) -> None:
        """Visit a node, and keep track of the current statement and the nesting of functions."""
        outer, is_function = self._statement, isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        if isinstance(node, ast.stmt):
            self._statement = node
        if is_function:
            for default in (*node.args.defaults, *filter(None, node.args.kw_defaults)):  # type: ignore[attr-defined]
                self.visit(default)
            body = node.body if isinstance(node.body, list) else [node.body]  # type: ignore[attr-defined]
            self._depth += 1
            for inner in body:
                self.visit(inner)
            self._depth -= 1
        elif isinstance(node, ast.AnnAssign):
            if node.value is not None:
                self.visit(node.value)
        else:
            super().visit(node)
        self._statement = outer

    def visit_Compare(self, node: ast.Compare) -> None:
        """Replace comparison operators."""
        operands = [node.left, *node.comparators]
        for left, right in pairwise(operands):
            self._flip("comparison", left, right, r"[<>=!]=|[<>]")
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        """Exchange ``and`` and ``or``."""
        for left, right in pairwise(node.values):
            self._flip("boolean", left, right, r"\b(?:and|or)\b")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        """Exchange ``+`` and ``-``."""
        if isinstance(node.op, ast.Add | ast.Sub):
            self._flip("arithmetic", node.left, node.right, r"[+-]")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        """Remove ``not``."""
        if isinstance(node.op, ast.Not):
            start = self._offset(node.lineno, node.col_offset)
            match = re.compile(r"not\s*").match(self._source, start)
            assert match is not None
            self._add("not", start, match.end(), "", node)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        """Add one to a number, and exchange True and False."""
        text = self._source[slice(*self._span(node))]
        if isinstance(node.value, bool):
            self._add("boolean constant", *self._span(node), FLIPS[text], node)
        elif isinstance(node.value, int | float):
            self._add("number", *self._span(node), repr(node.value + 1), node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Skip f-strings, because positions in them are wrong before Python 3.12."""

    def visit_Return(self, node: ast.Return) -> None:
        """Replace a returned value by None."""
        if node.value is not None and ast.unparse(node.value) != "None":
            self._add("return", *self._span(node), "return None", node)
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        """Remove a statement that is a call or an ``await``."""
        if isinstance(node.value, ast.Call | ast.Await):
            self._add("statement", *self._span(node), "pass", node)
        self.generic_visit(node)

    def _flip(self, operator: str, left: ast.expr, right: ast.expr, pattern: str) -> None:
        start, end = self._span(left)[1], self._span(right)[0]
        token = re.compile(pattern).search(self._source, start, end)
        if token is not None and "#" not in self._source[start : token.start()]:
            self._add(operator, token.start(), token.end(), FLIPS[token[0]], left)

    def _add(self, operator: str, start: int, end: int, replacement: str, node: ast.expr | ast.stmt) -> None:
        statement = self._statement or node
        lines = (statement.lineno, node.end_lineno or node.lineno)
        self.edits.append(Edit(operator, start, end, replacement, lines, self._depth > 0))

    def _span(self, node: ast.AST) -> tuple[int, int]:
        return (
            self._offset(node.lineno, node.col_offset),  # type: ignore[attr-defined]
            self._offset(node.end_lineno, node.end_col_offset),  # type: ignore[attr-defined]
        )

    def _offset(self, line: int, column: int) -> int:
        """Convert a line and a column in bytes to an offset in characters."""
        return self._starts[line - 1] + len(self._lines[line - 1][:column].decode())


_LUA_TOKEN = re.compile(
    r"""(?P<comment>--\[\[.*?\]\]|--[^\n]*)
    |(?P<string>'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|\[\[.*?\]\])
    |(?P<number>\b\d+(?:\.\d+)?\b)
    |(?P<word>[A-Za-z_]\w*)
    |(?P<operator>[=~<>]=|\.\.|[<>()])""",
    re.VERBOSE | re.DOTALL,
)


def _lua(source: str) -> Iterator[Edit]:
    tokens = [token for token in _LUA_TOKEN.finditer(source) if token.lastgroup not in {"comment", "string"}]
    for index, token in enumerate(tokens):
        line = source.count("\n", 0, token.start()) + 1
        text = token[0]
        if token.lastgroup == "number":
            bigger = str(float(text) + 1 if "." in text else int(text) + 1)
            yield Edit("number", token.start(), token.end(), bigger, (line, line))
        elif text in {"==", "~=", "<", "<=", ">", ">=", "and", "or"}:
            operator = "boolean" if text.isalpha() else "comparison"
            replacement = "~=" if text == "==" else FLIPS[text]
            yield Edit(operator, token.start(), token.end(), replacement, (line, line))
        elif text == "not":
            end = token.end() + len(source[token.end() :]) - len(source[token.end() :].lstrip())
            yield Edit("not", token.start(), end, "", (line, line))
        elif text == "redis":
            end = _end_of_call(source, token.start(), tokens[index:])
            if end is not None:
                last = source.count("\n", 0, end) + 1
                yield Edit("statement", token.start(), end, "", (line, last))


def _end_of_call(source: str, start: int, tokens: list[re.Match[str]]) -> int | None:
    """Return the end of a ``redis.call(…)`` that is a complete statement, or None if the call is part of an
    expression."""
    if source[source.rfind("\n", 0, start) + 1 : start].strip() or not source.startswith("redis.call(", start):
        return None
    depth = 0
    for token in tokens:
        depth += {"(": 1, ")": -1}.get(token[0], 0)
        if token[0] == ")" and depth == 0:
            rest = re.compile(r"[ \t]*(?:--[^\n]*)?(?:\n|$)").match(source, token.end())
            return token.end() if rest is not None else None
    return None
