"""Structure of the source: names, docstrings, script headers, and calls that tests must not make."""

from __future__ import annotations

import ast
import inspect
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from functools import cache, cached_property
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from a2a_celery import Settings
from a2a_celery.store.operation import libraries, required_libraries
from tests.support.store.scripts import script_files

from .source import PACKAGE, ROOT, FunctionNode, Module, last_name, modules

NAMES_THAT_SAY_NOTHING = {"utils", "util", "common", "helpers", "helper", "misc"}

SOURCE = modules(PACKAGE)
TESTS = modules("tests")
SCRIPTS = sorted((ROOT / PACKAGE).rglob("*.lua"))
VERBS = script_files()


ARGUMENTS_SECTION = re.compile(r"^Args:\n((?: +.*\n?|\n)*)", re.MULTILINE)


def documented_arguments(node: ast.ClassDef | FunctionNode) -> set[str]:
    """Return the names in the section "Args" of a docstring."""
    section = ARGUMENTS_SECTION.search(ast.get_docstring(node) or "")
    return set() if section is None else set(re.findall(r"^    \*{0,2}(\w+):", section[1], re.MULTILINE))


def arguments_of(node: ast.ClassDef | FunctionNode) -> set[str]:
    """Return the names of a function's arguments, or of the fields of a class and the arguments of its constructor."""
    if isinstance(node, ast.ClassDef):
        names = {
            item.target.id
            for item in node.body
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
        }
        constructors = [
            item for item in node.body if isinstance(item, FunctionNode) and item.name in ("__init__", "__new__")
        ]
        return names.union(*map(arguments_of, constructors))
    return {argument.arg for argument in ast.walk(node.args) if isinstance(argument, ast.arg)}


def test_a_docstring_describes_arguments_that_exist() -> None:
    unknown = {
        f"{module.name}:{node.name}": names
        for module in (*SOURCE, *TESTS)
        if "Args:\n" in module.text
        for node in module.nodes
        if isinstance(node, ast.ClassDef | FunctionNode)
        if (names := documented_arguments(node) - arguments_of(node))
    }

    assert unknown == {}


def test_no_property_test_depends_on_the_speed_of_the_machine() -> None:
    assert settings.default is not None
    assert settings.default.deadline is None
    assert HealthCheck.too_slow in settings.default.suppress_health_check
    own_names = [
        f"{module.name}:{call.lineno}"
        for module in TESTS
        for call in module.calls("settings")
        for option in call.keywords
        if (option.arg == "deadline" and ast.unparse(option.value) != "None")
        or (option.arg == "suppress_health_check" and not re.search("too_slow|list", ast.unparse(option.value)))
    ]

    assert own_names == []


def test_commands_print_json_without_control_characters() -> None:
    """`json_line` escapes the characters that `json.dumps` leaves unchanged."""
    commands = [module for module in SOURCE if module.name.startswith(f"{PACKAGE}/cli/")]
    own_json = {module.name for module in commands if any(module.calls("dumps"))}

    assert own_json == {f"{PACKAGE}/cli/output.py", f"{PACKAGE}/cli/dev/next_steps.py"}


def test_no_module_has_a_meaningless_name() -> None:
    assert {m.name for m in SOURCE + TESTS if NAMES_THAT_SAY_NOTHING & set(m.name_parts)} == set()


PUBLIC_MODULES = ["a2a_celery", "a2a_celery.client", "a2a_celery.client.receiver"]


def public_objects() -> Iterator[tuple[str, Any]]:
    """Yield the functions and classes of the public API and the public members of the classes."""
    for module in map(import_module, PUBLIC_MODULES):
        for name in getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]:
            value = getattr(module, name)
            if not (inspect.isclass(value) or inspect.isfunction(value)) or not value.__module__.startswith(PACKAGE):
                continue
            yield f"{module.__name__}.{name}", value
            if inspect.isclass(value):
                members = {key: getattr(value, key) for key in vars(value) if not key.startswith("_")}
                yield from ((f"{module.__name__}.{name}.{key}", member) for key, member in members.items())


def is_documented(value: Any) -> bool:
    """Return True if an object has or inherits a docstring. Constants and one-line properties need no docstring."""
    if isinstance(value, property | cached_property):
        function = value.fget if isinstance(value, property) else value.func
        lines = inspect.getsource(function).splitlines()
        return bool(inspect.getdoc(function)) or len(lines) <= 3  # decorator, signature, return
    return bool(inspect.getdoc(value)) if inspect.isroutine(value) or inspect.isclass(value) else True


def test_the_public_api_is_documented() -> None:
    assert {name for name, value in public_objects() if not is_documented(value)} == set()


def test_each_setting_is_documented() -> None:
    definition = ast.parse(inspect.getsource(Settings)).body[0]
    assert isinstance(definition, ast.ClassDef)
    pairs = zip(definition.body, definition.body[1:], strict=False)
    names_in_docs = {
        ast.unparse(node.target)
        for node, text in pairs
        if isinstance(node, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    }

    assert {field.name for field in fields(Settings)} == names_in_docs


def test_every_module_has_a_docstring() -> None:
    assert [module.name for module in SOURCE if not ast.get_docstring(module.tree)] == []


LUA_KEYWORDS = "and do else elseif end for function if in local nil not or repeat return then until while"
LUA_FUNCTIONS = "assert error ipairs next pairs pcall rawget select setmetatable tonumber tostring type unpack"
LUA_WORDS = set(re.findall(r"\w+", f"{LUA_KEYWORDS} {LUA_FUNCTIONS}"))
"""Keywords of Lua and functions of Redis' Lua, which may stand before a parenthesis."""


def lua_code(text: str) -> str:
    """Return a script without its comments and string literals."""
    return re.sub(r"""'[^'\n]*'|"[^"\n]*\"""", "''", re.sub(r"--[^\n]*", "", text))


def lua_names(code: str) -> set[str]:
    """Return the names that a script defines: functions, locals and parameters."""
    lists = re.findall(r"\blocal\s+(?!function)([\w, ]+)|\bfunction\s*\w*\(([\w, ]*)\)", code)
    names = {name for groups in lists for names in groups for name in re.split(r"[,\s]+", names)}
    return names | set(re.findall(r"\bfunction\s+([A-Za-z_]\w*)", code))


def lua_definitions(code: str) -> set[str]:
    """Return the names that a library defines for its users."""
    return set(re.findall(r"^local (?:function )?(\w+)", code, re.MULTILINE))


@cache
def names_of_libraries() -> dict[str, set[str]]:
    """Return the names that each library defines for its users."""
    return {library: lua_definitions(lua_code(text)) for library, text in libraries().items()}


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_script_requires_the_libraries_that_it_uses(path) -> None:  # type: ignore[no-untyped-def]
    """Redis reports an unknown name only when its line runs."""
    text = path.read_text(encoding="utf-8")
    code = lua_code(text)
    own_names = lua_names(code)
    identifiers = set(re.findall(r"(?<![\w.:])[A-Za-z_]\w*", code)) - own_names
    function_names = set(re.findall(r"(?<![\w.:])([A-Za-z_]\w*)\s*\(", code))
    definitions = names_of_libraries()

    assert required_libraries(text) == sorted(library for library, names in definitions.items() if identifiers & names)
    point_names = {name for name in function_names if name.endswith("_sections")}  # the linker defines them
    assert function_names - own_names - point_names - LUA_WORDS - set().union(*definitions.values()) == set()


def test_no_two_libraries_define_one_name_and_no_two_scripts_share_one() -> None:
    definitions = [name for text in libraries().values() for name in lua_definitions(lua_code(text))]

    assert [name for name, times in Counter(definitions).items() if times > 1] == []
    assert [name for name, times in Counter(path.stem for path in VERBS).items() if times > 1] == []
    assert {path.stem for path in VERBS} & set(libraries()) == set()


@pytest.mark.parametrize("path", VERBS, ids=lambda path: path.stem)
def test_a_script_states_its_effect_and_replies_and_counts_no_arguments(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    header = list(takewhile(lambda line: line.startswith("--"), lines))
    code = lines[len(header) :]

    parts = [f"-- {path.stem}: ", "-- returns ", "-- requires: "]
    found = [part for line in header for part in parts if line.startswith(part)]
    assert found == (parts if any(map(required_libraries, header)) else parts[:-1])
    assert code[0] == ""
    assert [line for line in code if re.search(r"\b(KEYS|ARGV)\b", line)] == []


def calls_in(module: Module, *names: str) -> set[str]:
    """Return the source text of the calls to functions and methods that have one of `names`."""
    return {ast.unparse(call.func) for call in module.calls(*names)}


SKIP_MARKERS = ("skip", "skipif", "xfail")


def decorators_in(module: Module) -> set[str]:
    """Return the source text of a module's decorators that may skip a test."""
    return {
        ast.unparse(decorator)
        for node in (module.nodes if module.mentions(SKIP_MARKERS) else ())
        if isinstance(node, FunctionNode | ast.ClassDef)
        for decorator in node.decorator_list
    }


TEST_FILES = [module for module in TESTS if module.path.name.startswith(("test_", "conftest"))]


def test_no_test_sleeps() -> None:
    assert {m.name for m in TEST_FILES if {"time.sleep", "sleep"} & calls_in(m, "sleep")} == set()


TIME_FUNCTIONS = {"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "time", "time_ns"}
DATE_FUNCTIONS = {"now", "utcnow", "today"}

READS_TIME_DIRECTLY = {
    "a2a_celery/clock.py": "the clock itself",
    "a2a_celery/cli/": "a command waits for processes and for people, in real time; embedded_redis.py too",
    "a2a_celery/lifecycle/execution.py": "the lifecycle imports nothing of ours; its machine has a clock of its own",
}
"""Files and folders that read the time without the clock, with the reason."""


def time_readings(module: Module) -> set[str]:
    """Return the functions of `time` and `datetime` that a module imports or names."""
    names: set[str] = set()
    for node in module.nodes:
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            names |= {alias.name for alias in node.names} & TIME_FUNCTIONS
        elif isinstance(node, ast.Attribute):
            owner = last_name(node.value)
            if (owner == "time" and node.attr in TIME_FUNCTIONS) or (
                owner in {"datetime", "date"} and node.attr in DATE_FUNCTIONS
            ):
                names.add(f"{owner}.{node.attr}")
    return names


def test_the_package_reads_time_from_the_clock_only() -> None:
    direct = {module.name for module in SOURCE if time_readings(module)}

    assert {name for name in direct if not name.startswith(tuple(READS_TIME_DIRECTLY))} == set()
    assert {path for path in READS_TIME_DIRECTLY if not any(name.startswith(path) for name in direct)} == set()


def patched_names(module: Module) -> set[str]:
    """Return the names that a test replaces, except names of commands, because commands take no clock."""
    replacing = module.calls("setattr", "patch", "object")
    strings = (str(arg.value) for call in replacing for arg in call.args[:2] if isinstance(arg, ast.Constant))
    return {name.rpartition(".")[2] for name in strings if not name.startswith(f"{PACKAGE}.cli.")}


def test_no_test_replaces_time_by_name() -> None:
    """Tests pass a `ManualClock` (tests/support/clocks.py) to the object and move the clock."""
    times = TIME_FUNCTIONS | {"sleep", "datetime", "SYSTEM_CLOCK"}

    assert {module.name for module in TESTS if times & patched_names(module)} == set()


def test_nothing_is_skipped_but_a_broker_or_an_engine_that_is_missing() -> None:
    skips = {"pytest.skip", "pytest.xfail", "pytest.importorskip"}
    marker = re.compile(rf"\b({'|'.join(SKIP_MARKERS)})\b")
    skipping = {m.name for m in TEST_FILES if skips & calls_in(m, "skip", "xfail", "importorskip")}
    marker_files = {m.name for m in TEST_FILES if any(marker.search(decorator) for decorator in decorators_in(m))}

    assert skipping == {"tests/conftest.py", "tests/docker/conftest.py"}
    assert marker_files == set()


OWNED = {"OpenRun", "RunEventQueue", "RecordBuffer", "Settlement", "ActivityRecorder"}
"""Classes whose attributes only their own methods assign."""


def assigned_attributes(node: ast.AST) -> Iterator[ast.Attribute]:
    """Yield the attributes that are assigned within a node."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
            yield inner


def test_no_code_assigns_attributes_of_a_run_from_outside() -> None:
    workers = [module for module in SOURCE if module.name.startswith((f"{PACKAGE}/execution/", f"{PACKAGE}/f"))]
    classes = [node for module in workers for node in module.nodes if isinstance(node, ast.ClassDef)]
    names = {target.attr for node in classes if node.name in OWNED for target in assigned_attributes(node)}

    outside = {
        f"{module.name}:{target.lineno}: {ast.unparse(target)}"
        for module in workers
        for target in assigned_attributes(module.tree)
        if target.attr in names and ast.unparse(target.value) != "self"
    }

    assert {"question", "translator", "is_lost"} <= names
    assert outside == set()


ATTRIBUTES = {"Claim": 9, "OpenRun": 17, "RunEventQueue": 12}
"""Number of attributes of the classes that all parts of a run share. The numbers may only fall."""


def attributes_of(node: ast.ClassDef) -> set[str]:
    """Return the fields of a class and the attributes that its methods assign to `self`."""
    declared = {item.target.id for item in node.body if isinstance(item, ast.AnnAssign) if hasattr(item.target, "id")}
    return declared | {target.attr for target in assigned_attributes(node) if ast.unparse(target.value) == "self"}


def test_the_classes_that_a_run_shares_gain_no_attribute() -> None:
    classes = [node for module in SOURCE for node in module.nodes if isinstance(node, ast.ClassDef)]

    assert {node.name: len(attributes_of(node)) for node in classes if node.name in ATTRIBUTES} == ATTRIBUTES
