"""Pages and API reference of the documentation site, and the code in its pages. `make docs` builds the site."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
import yaml

import a2a_celery
import a2a_celery.client.calling
import a2a_celery.testing
from a2a_celery.client import receiver

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md")])
REFERENCE = "\n".join(page.read_text(encoding="utf-8") for page in (DOCS / "reference").glob("*.md"))
DIRECTIVES = set(re.findall(r"^::: (a2a_celery\S+)$", REFERENCE, re.MULTILINE))


def blocks(language: str) -> Iterator[tuple[str, str]]:
    """Yield each fenced block of the pages in `language`, with the name of its page."""
    for page in PAGES:
        for code in re.findall(
            rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
        ):
            yield page.name, code


def imported(code: str) -> Iterator[tuple[str, str]]:
    """Yield the modules of this package that `code` imports from, with the imported names."""
    for node in ast.walk(compile(code, "page", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "a2a_celery":
            yield from ((str(node.module), alias.name) for alias in node.names)


def test_the_navigation_has_each_page_once() -> None:
    listed = re.findall(r"- ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    roots = {"index.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"}

    assert sorted(listed) == sorted({str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")} | roots)


@pytest.mark.parametrize(
    "module",
    [a2a_celery, a2a_celery.client, a2a_celery.client.calling, a2a_celery.testing, receiver],
    ids=lambda module: module.__name__,
)
def test_each_public_name_is_in_the_reference(module: ModuleType) -> None:
    generated = {"a2a_celery.Settings"}  # by docs/hooks.py

    assert {f"{module.__name__}.{name}" for name in module.__all__} - DIRECTIVES - generated == set()


SEPARATE = ("crewai", "crewai.tools", "a2a_celery.frameworks.crewai")
"""Modules that only the environment of `make crewai` has. tests/crewai runs the code of the documentation."""


def test_each_name_of_the_reference_exists() -> None:
    for path in DIRECTIVES:
        module, _, name = path.rpartition(".")
        assert module in SEPARATE or hasattr(import_module(module), name), path


def test_each_python_block_compiles_and_imports_names_that_exist() -> None:
    checked = 0
    for page, code in blocks("python"):
        for module, name in imported(code):
            is_separate = module in SEPARATE
            assert is_separate or hasattr(import_module(module), name), f"{page}: {module}.{name}"
            checked += 1
    assert checked > 20


def test_json_and_yaml_blocks_are_valid() -> None:
    assert [json.loads(code) for _, code in blocks("json")]
    assert [list(yaml.safe_load_all(code)) for _, code in blocks("yaml")]


def test_the_supported_versions_are_those_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    required = dict(re.findall(r"^([\w-]+)(?:\[.*?\])?(.*)$", "\n".join(project["dependencies"]), re.MULTILINE))
    table = (DOCS / "versions.md").read_text(encoding="utf-8").partition("\n\n| component")[0]
    listed = dict(re.findall(r"^\| `?([\w-]+)`? \| `(.+?)` \|$", table, re.MULTILINE))

    assert listed.pop("Python") == project["requires-python"]
    assert len(listed) == 5
    assert listed == {name: required[name] for name in listed}


def test_all_places_name_the_same_version() -> None:
    version = a2a_celery.__version__
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    tags = re.findall(r"ref=v([\d.]+)", (DOCS / "kubernetes.md").read_text(encoding="utf-8"))
    stated = re.findall(r"Version (\d+\.\d+) ", (DOCS / "comparison.md").read_text(encoding="utf-8"))

    supported = re.findall(
        r"^\| a2a-celery \| (\d+\.\d+) \|$", (DOCS / "versions.md").read_text(encoding="utf-8"), re.MULTILINE
    )

    assert re.findall(r"^## ([\d.]+)", changes, re.MULTILINE)[0] == version
    assert tags == [version]
    assert stated == supported == [version.rpartition(".")[0]]
