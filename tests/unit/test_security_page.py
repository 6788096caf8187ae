"""Snippets, rules and permissions in docs/security.md, which must equal the configuration of the tests."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
SNIPPETS = [ast.parse(snippet) for snippet in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)]


def settings(*trees: ast.AST) -> dict[str, str]:
    """Return the values that are set in ``app.conf``, with "…" for paths and variables."""
    values = {}
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).startswith("app.conf."):
            values[ast.unparse(node.targets[0]).removeprefix("app.conf.")] = _shown_value(node.value)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "app.conf.update":
            values |= {str(keyword.arg): _shown_value(keyword.value) for keyword in node.keywords}
    return values


def _shown_value(value: ast.expr) -> str:
    text = ast.unparse(value)
    return "…" if "/" in text or "environ" in text or text.isidentifier() or " if " in text else text


def source_of(module: str) -> str:
    return (ROOT / "tests" / "support" / "agents" / f"{module}.py").read_text(encoding="utf-8")


def module_tree(module: str) -> ast.AST:
    return ast.parse(source_of(module))


def test_the_tests_use_the_documented_configuration() -> None:
    documented_settings = settings(*SNIPPETS)

    test_settings = settings(module_tree("signing_app"), module_tree("tls_agents"))
    assert {name: test_settings.get(name) for name in documented_settings} == documented_settings
    assert "app.setup_security()" in PAGE
    assert "app.setup_security()" in source_of("signing_app")


def test_the_tests_set_the_documented_tls_files() -> None:
    def keys(tree: ast.AST) -> list[list[str]]:
        dicts = [node for node in ast.walk(tree) if isinstance(node, ast.Dict)]
        return [
            [ast.literal_eval(key) for key in dict_node.keys if key] for dict_node in dicts if len(dict_node.keys) == 4
        ]

    assert keys(SNIPPETS[0]) == keys(module_tree("tls_agents"))
    assert re.findall(r"(ssl_\w+)=", PAGE.partition("A2A_STORE_URL=")[2].partition("```")[0]) == [
        "ssl_ca_certs",
        "ssl_certfile",
        "ssl_keyfile",
    ]
