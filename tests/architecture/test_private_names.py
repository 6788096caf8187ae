"""Use of private names of other libraries, which is allowed only in ``a2a_celery/integrations``."""

from __future__ import annotations

import ast
import tomllib
from abc import ABC
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.metadata import version
from inspect import getmro
from pathlib import Path
from typing import Generic, Protocol

import pytest
from packaging.requirements import Requirement

from a2a_celery.errors import ConfigError
from a2a_celery.integrations import Library

from .source import PACKAGE, ROOT, FunctionNode, Module, last_name, modules

INTEGRATIONS = f"{PACKAGE}/integrations/"

PUBLIC = {"_": "", "_exit": "os", "_pipe_file": "fsspec", "_cat_file": "fsspec", "_rm": "fsspec"}
PUBLIC |= {"_format_feedback_message": "crewai", "_invoke_loop": "crewai"}
"""Names with an underscore that their library documents."""

GENERATED = {"_abc_impl", "_is_protocol"}
"""Private names that Python adds to a class."""

PLAIN = (object, tuple, ABC, Generic, Protocol)
"""Base classes whose private names no class uses."""

BY_NAME = {"getattr", "hasattr", "setattr", "delattr"}

SOURCE = modules(PACKAGE)
MODULES = {".".join(module.name_parts): module for module in SOURCE}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in PUBLIC


@cache
def defined_names(tree: ast.AST) -> set[str]:
    """Return the private names that `tree` defines: functions, classes, variables and attributes of `self`."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names |= {node.attr} if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls") else set()
    return {name for name in names if is_private(name)}


@cache
def names_of_this_package() -> set[str]:
    """Return the private names that a2a_celery defines."""
    return set().union(*(defined_names(module.tree) for module in SOURCE))


def definition_of(kind: type) -> ast.ClassDef | None:
    """Return the definition of a class of a2a_celery, or None for any other class."""
    module = MODULES.get(kind.__module__)
    nodes = () if module is None else module.tree.body
    return next((node for node in nodes if isinstance(node, ast.ClassDef) and node.name == kind.__name__), None)


def uses(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield the private names that are read, set or imported in `tree`, each with the expression that it belongs to."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            yield node.attr, ast.unparse(node.value)
        elif isinstance(node, ast.Call) and last_name(node.func) in BY_NAME and len(node.args) > 1:
            owner, name = node.args[:2]
            if isinstance(name, ast.Constant):
                yield str(name.value), ast.unparse(owner)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                yield from ((name, alias.asname or alias.name) for name in [*str(node.module).split("."), alias.name])


def foreign_names(module: Module) -> set[str]:
    """Return the names in a module that stand for modules, classes or functions of other libraries."""
    return {
        (alias.asname or alias.name).partition(".")[0]
        for node in module.nodes
        if isinstance(node, ast.Import) or (isinstance(node, ast.ImportFrom) and not node.level)
        for alias in node.names
    }


def foreign_arguments(function: FunctionNode, foreign: set[str]) -> set[str]:
    """Return the function's arguments whose type is a class of another library."""
    arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return {
        argument.arg
        for argument in arguments
        if argument.annotation is not None and ast.unparse(argument.annotation).partition(" |")[0] in foreign
    }


def used_names(module: Module) -> set[str]:
    """Return the private names of other libraries that a module uses.

    A name that a2a_celery defines too is included if its owner is an import of another library, or an argument whose
    type is such an import.
    """
    foreign = foreign_names(module)
    ours = names_of_this_package()
    names = {name for name, owner in uses(module.tree) if name not in ours or owner.partition(".")[0] in foreign}
    for function in module.functions():
        if arguments := foreign_arguments(function, foreign):
            names |= {name for name, owner in uses(function) if owner in arguments}
    return names


def inherited_names(module: Module) -> Iterator[str]:
    """Yield the private names of another library's base class that a class of the module overrides or uses."""
    classes = [node for node in module.tree.body if isinstance(node, ast.ClassDef) and node.bases]
    if not classes or module.path.name == "__main__.py":
        return
    try:
        imported_module = import_module(".".join(module.name_parts))
    except ModuleNotFoundError:  # an extra is not installed
        return
    for node in classes:
        kind = getattr(imported_module, node.name)
        is_ours = {base: base.__module__.partition(".")[0] == PACKAGE for base in getmro(kind)}
        theirs = [base for base in is_ours if not is_ours[base] and base.__module__ not in ("builtins", "enum")]
        yield from (key for key in vars(kind) if key not in GENERATED for base in theirs if key in vars(base))
        if any(base not in PLAIN for base in theirs):
            definitions = [definition_of(base) for base in is_ours]
            ours = set().union(*(defined_names(base) for base in definitions if base is not None))
            yield from (name for name, owner in uses(node) if owner in ("self", "cls", "super()") and name not in ours)


def private_names(module: Module) -> set[str]:
    return {name for name in {*used_names(module), *inherited_names(module)} if is_private(name)}


def test_private_names_of_libraries_are_used_in_integrations_only() -> None:
    elsewhere = [module for module in SOURCE if not module.name.startswith(INTEGRATIONS)]

    assert {module.name: names for module in elsewhere if (names := private_names(module))} == {}


@pytest.mark.parametrize(
    "code",
    [
        "from library import Request\n\ndef read(request: Request | None):\n    return request.{}",
        "import library.requests\n\nvalue = library.requests.{}",
        "from library.requests import {}",
        "import library\n\nvalue = getattr(library, '{}', None)",
    ],
)
def test_a_private_name_is_found_although_the_package_defines_one_like_it(code: str, tmp_path: Path) -> None:
    name = min(names_of_this_package())
    (tmp_path / "module.py").write_text(code.format(name))

    assert name in used_names(Module(tmp_path / "module.py"))


LIBRARIES = [
    value
    for module in SOURCE
    if module.name.startswith(INTEGRATIONS)
    for value in vars(import_module(".".join(module.name_parts))).values()
    if isinstance(value, Library)
]


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.name)
def test_a_library_has_the_bounds_of_the_package_and_was_checked(library: Library) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    specifier = Requirement(library.requirement).specifier

    extras = [requirement for extra in project["optional-dependencies"].values() for requirement in extra]
    assert library.requirement in project["dependencies"] + extras
    assert "<" in library.requirement
    assert library.checked in specifier
    assert version(library.name) == library.checked, "check the private names, then name this version"


def test_a_missing_name_is_an_error_that_names_the_versions_to_install() -> None:
    celery = Library("celery>=5.7.0,<6", checked="5.7.0")

    class Task:
        def __init__(self) -> None:
            self._request = None

    celery.require(Task, "_request")
    with pytest.raises(ConfigError, match=r"celery .* has no .*Task\._gone, .* install celery>=5\.7\.0,<6 \(checked"):
        celery.require(Task, "_request", "_gone")
