"""Selection of the tests that reach a mutant, based on the data of ``measure_coverage``."""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from .mutants import PACKAGE, Mutant

ROOT = Path(__file__).resolve().parents[2]


def node_id(context: str) -> str:
    """Return the node id in a coverage context, or "" if the context has no node id."""
    newest = re.split(r"\|(?=tests/)", context)[-1]
    return re.sub(r" \((?:setup|call|teardown)\)$", "", newest) if newest.startswith("tests/") else ""


class Selector:
    """Selector of the tests that reach a mutant."""

    def __init__(self, folder: Path, tests: set[str]) -> None:
        from coverage import CoverageData  # noqa: PLC0415 - installed by the extra `dev`, not by the extra `test`

        self._data = CoverageData(str(folder / "data"))
        self._data.read()
        self._measured = {path[path.rindex(f"/{PACKAGE}/") + 1 :]: path for path in self._data.measured_files()}
        self._tests = tests
        self.seconds: Counter[str] = Counter()
        for line in (folder / "outcomes.jsonl").read_text(encoding="utf-8").splitlines():
            test, _, _, seconds, *_ = json.loads(line)
            self.seconds[test] += seconds

    def select(self, mutant: Mutant, exclusions: set[str]) -> list[str]:
        """Return the tests that reach the mutant, without `exclusions`, those of the fastest files first. For Lua
        scripts, tests in tests/store and tests/features precede all others."""
        tests = self._reaching(mutant) - exclusions
        files: Counter[str] = Counter()
        for test in tests:
            files[_file(test)] += self.seconds[test]
        first = ("tests/store/", "tests/features/") if mutant.path.endswith(".lua") else ""
        return sorted(tests, key=lambda t: (not t.startswith(first), files[_file(t)], _file(t), self.seconds[t], t))

    def _reaching(self, mutant: Mutant) -> set[str]:
        if mutant.path.endswith(".lua"):
            return self._calling(Path(mutant.path))
        first, last = mutant.edit.statement_lines
        return self._ran(mutant.path, range(first, last + 1) if mutant.edit.in_function else None)

    def _calling(self, script: Path) -> set[str]:
        """Return the tests that ran a line of a function that calls a script. If no function calls the script, return
        the tests that ran any line of a file that names its verb. For a section, return the tests that ran its
        module."""
        if script.stem.endswith("section"):
            return self._ran(script.with_suffix(".py").as_posix(), None)
        pattern = re.compile(r"\bOperation\(" if script.parent.name == "lib" else rf"(?<!def )\b_{script.stem}\b")
        calling: set[str] = set()
        naming: set[str] = set()
        for path in self._measured:
            if path.startswith((f"{PACKAGE}/store/", f"{PACKAGE}/features/")):
                source = (ROOT / path).read_text(encoding="utf-8")
                lines = {number for number, line in enumerate(source.splitlines(), 1) if pattern.search(line)}
                calling |= self._ran(path, lines & function_lines(source))
                naming |= self._ran(path, None) if lines else set()
        return calling or naming

    def _ran(self, path: str, lines: Iterable[int] | None) -> set[str]:
        """Return the tests that ran one of `lines` of a file, or any line of the file if `lines` is None."""
        contexts = self._data.contexts_by_lineno(self._measured[path]) if path in self._measured else {}
        test_contexts = contexts.values() if lines is None else [contexts.get(line, []) for line in lines]
        names = {context for line in test_contexts for context in line}
        files = {_file(node_id(name)) for name in names if name.endswith(")") and node_id(name)}
        return {test for test in self._tests if _file(test) in files} | (
            {node_id(name) for name in names} & self._tests
        )


def function_lines(source: str) -> set[int]:
    """Return the line numbers of the bodies of all functions in Python code."""
    lines: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines.update(range(node.body[0].lineno, (node.end_lineno or 0) + 1))
    return lines


def _file(test: str) -> str:
    return test.partition("::")[0]


def cap_tests(tests: Sequence[str], seconds: Mapping[str, float], cap: float) -> list[str]:
    """Return the first tests whose total expected duration is at most `cap` seconds, but at least one test."""
    total, selection = 0.0, []
    for test in tests:
        total += seconds[test]
        if selection and total > cap:
            break
        selection.append(test)
    return selection
