"""The shape of the source: sizes, names, docstrings, headers of scripts, and what tests must not do."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from .source import PACKAGE, ROOT, FunctionNode, Module, modules

LINES_PER_FILE = 300
LINES_PER_TEST_FILE = 400
"""Tests stand beside each other; nobody has to read them in one go."""

LONG_FILES: dict[str, int] = {}
"""Files that may be longer, each with its limit and a reason."""
LINES_PER_FUNCTION = 60
NAMES_THAT_SAY_NOTHING = {"utils", "util", "common", "helpers", "helper", "misc"}

SOURCE = modules(PACKAGE)
TESTS = modules("tests")
SCRIPTS = sorted((ROOT / PACKAGE).rglob("*.lua"))


@pytest.mark.parametrize("module", SOURCE + TESTS, ids=lambda module: module.name)
def test_a_file_can_be_read_in_one_go(module: Module) -> None:
    budget = LINES_PER_FILE if module in SOURCE else LINES_PER_TEST_FILE

    assert module.lines <= LONG_FILES.get(module.name, budget)


def test_no_file_is_called_long_that_is_not() -> None:
    lengths = {module.name: module.lines for module in SOURCE}

    assert {name for name in LONG_FILES if lengths.get(name, 0) <= LINES_PER_FILE} == set()


def test_a_function_fits_on_a_screen() -> None:
    too_long = {
        f"{module.name}:{function.name}": length
        for module in SOURCE
        for function in module.functions()
        if (length := (function.end_lineno or 0) - function.lineno + 1) > LINES_PER_FUNCTION
    }

    assert too_long == {}


def test_no_property_test_depends_on_the_speed_of_the_machine() -> None:
    assert settings.default is not None
    assert settings.default.deadline is None
    assert HealthCheck.too_slow in settings.default.suppress_health_check
    own = [
        f"{module.name}:{call.lineno}"
        for module in TESTS
        for call in ast.walk(module.tree)
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "settings"
        for option in call.keywords
        if (option.arg == "deadline" and ast.unparse(option.value) != "None")
        or (option.arg == "suppress_health_check" and not re.search("too_slow|list", ast.unparse(option.value)))
    ]

    assert own == []


def test_no_module_has_a_name_that_says_nothing() -> None:
    assert {m.name for m in SOURCE + TESTS if NAMES_THAT_SAY_NOTHING & set(m.dotted)} == set()


def public_parts(module: Module) -> Iterator[tuple[str, ast.AST]]:
    """Public classes and functions of a module, and public methods of public classes."""
    for node in module.tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name, node
            for inner in node.body:
                if isinstance(inner, FunctionNode) and not inner.name.startswith("_"):
                    yield f"{node.name}.{inner.name}", inner
        elif isinstance(node, FunctionNode) and not node.name.startswith("_"):
            yield node.name, node


def explains_itself(name: str, node: ast.AST) -> bool:
    """Whether it has a docstring; a short property is explained by its name and type."""
    if isinstance(node, FunctionNode):
        decorators = {ast.unparse(decorator) for decorator in node.decorator_list}
        short = (node.end_lineno or 0) - node.body[0].lineno <= 1
        if short and decorators & {"property", "cached_property"}:
            return True
    return ast.get_docstring(node) is not None  # type: ignore[arg-type]


IMPLEMENT_A_PROTOCOL = {
    "a2a_celery/execution/adapters.py": {"run", "cancel"},  # Adapter says what they do
}


@pytest.mark.parametrize("module", SOURCE, ids=lambda module: module.name)
def test_everything_public_says_what_it_guarantees(module: Module) -> None:
    known = IMPLEMENT_A_PROTOCOL.get(module.name, set())
    silent = [
        name
        for name, node in public_parts(module)
        if not explains_itself(name, node) and name.rpartition(".")[2] not in known
    ]

    assert silent == []


@pytest.mark.parametrize("module", SOURCE, ids=lambda module: module.name)
def test_every_module_says_what_it_is_for(module: Module) -> None:
    assert ast.get_docstring(module.tree)


@pytest.mark.parametrize("path", [p for p in SCRIPTS if p.stem != "prelude"], ids=lambda path: path.stem)
def test_a_script_says_its_keys_its_arguments_and_what_it_gives(path) -> None:  # type: ignore[no-untyped-def]
    text = path.read_text(encoding="utf-8")
    header = "".join(line + "\n" for line in _leading_comment(text))
    body = text[len(header) :]

    assert header.startswith(f"-- {path.stem}: ")
    for word in ("-- KEYS  ", "-- ARGV  ", "-- gives "):
        assert word in header
    used = {int(n) for n in re.findall(r"\bARGV\[(\d+)\]", body)}
    named = _numbers(header[header.index("-- ARGV") :])
    assert used <= named, "arguments that the header does not name"


def _leading_comment(text: str) -> list[str]:
    lines = []
    for line in text.splitlines():
        if not line.startswith("--"):
            break
        lines.append(line)
    return lines


def _numbers(header: str) -> set[int]:
    """Every number in brackets, "[3…7]" meaning all between, "[4…]" all that follow."""
    numbers: set[int] = set()
    for first, dots, last in re.findall(r"\[(\d+)(…?)(\d*)\]", header):
        numbers |= set(range(int(first), (int(last) if last else int(first) + (50 if dots else 0)) + 1))
    if "then three for each" in header:
        numbers |= set(range(50))
    return numbers


def calls_in(module: Module) -> set[str]:
    """What a module calls, as written."""
    return {ast.unparse(node.func) for node in ast.walk(module.tree) if isinstance(node, ast.Call)}


def decorators_in(module: Module) -> set[str]:
    """What a module's functions and classes are decorated with, as written."""
    return {
        ast.unparse(decorator)
        for node in ast.walk(module.tree)
        if isinstance(node, FunctionNode | ast.ClassDef)
        for decorator in node.decorator_list
    }


TEST_FILES = [module for module in TESTS if module.path.name.startswith(("test_", "conftest"))]


def test_no_test_sleeps() -> None:
    assert {m.name for m in TEST_FILES if {"time.sleep", "sleep"} & calls_in(m)} == set()


TIME_FUNCTIONS = {"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "time", "time_ns"}
DATE_FUNCTIONS = {"now", "utcnow", "today"}

READS_TIME_DIRECTLY = {
    "a2a_celery/clock.py": "the clock itself",
    "a2a_celery/cli/": "a command waits for processes and for people, in real time; embedded.py too",
    "a2a_celery/lifecycle/execution.py": "the lifecycle imports nothing of ours; its machine has a clock of its own",
}
"""Why a file, or a folder of files, reads time without the clock."""


def time_readings(module: Module) -> set[str]:
    """Return the functions of `time` and `datetime` that a module imports or names."""
    names: set[str] = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            names |= {alias.name for alias in node.names} & TIME_FUNCTIONS
        elif isinstance(node, ast.Attribute):
            owner = ast.unparse(node.value)
            if (owner == "time" and node.attr in TIME_FUNCTIONS) or (
                owner.rpartition(".")[2] in {"datetime", "date"} and node.attr in DATE_FUNCTIONS
            ):
                names.add(f"{owner}.{node.attr}")
    return names


def test_the_package_reads_time_from_the_clock_only() -> None:
    direct = {module.name for module in SOURCE if time_readings(module)}

    assert {name for name in direct if not name.startswith(tuple(READS_TIME_DIRECTLY))} == set()
    assert {allowed for allowed in READS_TIME_DIRECTLY if not any(name.startswith(allowed) for name in direct)} == set()


def patched_names(module: Module) -> set[str]:
    """Return the names that a test replaces, but those of commands, which take no clock."""
    calls = (node for node in ast.walk(module.tree) if isinstance(node, ast.Call))
    replacing = [call for call in calls if ast.unparse(call.func).rpartition(".")[2] in {"setattr", "patch", "object"}]
    strings = (str(arg.value) for call in replacing for arg in call.args[:2] if isinstance(arg, ast.Constant))
    return {name.rpartition(".")[2] for name in strings if not name.startswith(f"{PACKAGE}.cli.")}


def test_no_test_replaces_time_by_name() -> None:
    """A test gives the object a `ManualClock` (tests/support/clocks.py) and moves it."""
    times = TIME_FUNCTIONS | {"sleep", "datetime", "SYSTEM_CLOCK"}

    assert {module.name for module in TESTS if times & patched_names(module)} == set()


def test_nothing_is_skipped_but_a_broker_or_an_engine_that_is_missing() -> None:
    skips = {"pytest.skip", "pytest.xfail", "pytest.importorskip"}
    skipping = {m.name for m in TEST_FILES if skips & calls_in(m)}
    marked = {m.name for m in TEST_FILES if any(re.search(r"\b(skip|skipif|xfail)\b", d) for d in decorators_in(m))}

    assert skipping == {"tests/conftest.py", "tests/docker/conftest.py"}
    assert marked == set()
