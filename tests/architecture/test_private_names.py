"""Private names of other libraries are used in ``a2a_celery/integrations`` only."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import version
from inspect import getmro

import pytest
from packaging.requirements import Requirement

from a2a_celery.errors import ConfigError
from a2a_celery.integrations import Library

from .source import PACKAGE, ROOT, Module, modules

INTEGRATIONS = f"{PACKAGE}/integrations/"

PENDING = {
    "_after_cursor",
    "_context_builder",
    "_ERROR_CODE_MAP",
    "_from_orm",
    "_generate_error_response",
    "_handle_cancel_task",
    "_handle_get_task",
    "_handle_list_tasks",
    "_handle_send_message",
    "_listen_for_exit_signal",
    "_process_non_streaming_request",
    "_to_orm",
}
"""Names that are still used elsewhere."""

PUBLIC = {"_": "", "_exit": "os", "_pipe_file": "fsspec", "_cat_file": "fsspec", "_rm": "fsspec"}
"""Names with an underscore that their library documents."""

BY_NAME = {"getattr", "hasattr", "setattr", "delattr"}

SOURCE = modules(PACKAGE)


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in PUBLIC


def defined_names() -> set[str]:
    """Return the private names that the package defines: functions, classes, variables and attributes of `self`."""
    names: set[str] = set()
    for module in SOURCE:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                names |= {node.attr} if ast.unparse(node.value) in ("self", "cls") else set()
    return {name for name in names if is_private(name)}


def used_names(module: Module) -> Iterator[str]:
    """Yield the private names that a module reads, sets or imports."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in BY_NAME and len(node.args) > 1:
            yield from (arg.value for arg in node.args[1:2] if isinstance(arg, ast.Constant) and arg.value)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from (node.module or "").split(".")
            yield from (alias.name for alias in node.names)


def overridden_names(module: Module) -> Iterator[str]:
    """Yield the private names that a class of the module has in common with a base class of another library."""
    classes = [node.name for node in module.tree.body if isinstance(node, ast.ClassDef) and node.bases]
    if not classes or module.path.name == "__main__.py":
        return
    try:
        loaded = import_module(".".join(module.dotted))
    except ModuleNotFoundError:  # of an extra that is not installed
        return
    for name in classes:
        bases = [base for base in getmro(getattr(loaded, name)) if base.__module__.partition(".")[0] != PACKAGE]
        own = {key for key in vars(getattr(loaded, name)) if is_private(key)} - {"_abc_impl", "_is_protocol"}
        yield from (key for key in own for base in bases if key in vars(base) and base.__module__ != "enum")


def test_private_names_of_libraries_are_used_in_integrations_only() -> None:
    ours = defined_names()
    found = {
        (module.name, name)
        for module in SOURCE
        if not module.name.startswith(INTEGRATIONS)
        for name in {*(name for name in used_names(module) if name not in ours), *overridden_names(module)}
        if is_private(name)
    }

    assert {(module, name) for module, name in found if name not in PENDING} == set()
    assert {name for _, name in found} >= PENDING


LIBRARIES = [
    value
    for module in SOURCE
    if module.name.startswith(INTEGRATIONS)
    for value in vars(import_module(".".join(module.dotted))).values()
    if isinstance(value, Library)
]


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.name)
def test_a_library_has_the_bounds_of_the_package_and_was_checked(library: Library) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    supported = Requirement(library.requirement).specifier

    assert library.requirement in project["dependencies"]
    assert "<" in library.requirement
    assert library.checked in supported
    assert version(library.name) == library.checked, "check the private names, then name this version"


def test_a_missing_name_is_an_error_that_names_the_versions_to_install() -> None:
    celery = Library("celery>=5.7.0,<6", checked="5.7.0")

    class Task:
        def __init__(self) -> None:
            self._request = None

    celery.require(Task, "_request")
    with pytest.raises(ConfigError, match=r"celery .* has no .*Task\._gone, .* install celery>=5\.7\.0,<6 \(checked"):
        celery.require(Task, "_request", "_gone")
