"""docs/security.md shows what the tests' own apps are configured with; its rules and permissions are the tests' own."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
SNIPPETS = [ast.parse(snippet) for snippet in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)]


def settings(*trees: ast.AST) -> dict[str, str]:
    """What is set in ``app.conf``, and to what; of paths and variables only that they are some."""
    found = {}
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).startswith("app.conf."):
            found[ast.unparse(node.targets[0]).removeprefix("app.conf.")] = _said(node.value)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "app.conf.update":
            found |= {str(keyword.arg): _said(keyword.value) for keyword in node.keywords}
    return found


def _said(value: ast.expr) -> str:
    text = ast.unparse(value)
    return "…" if "/" in text or "environ" in text or text.isidentifier() or " if " in text else text


def of(module: str) -> ast.AST:
    return ast.parse((ROOT / "tests" / "support" / f"{module}.py").read_text(encoding="utf-8"))


def test_the_tests_sign_and_connect_as_the_page_says() -> None:
    shown = settings(*SNIPPETS)

    tested = settings(of("signed"), of("secured"))
    assert {name: tested.get(name) for name in shown} == shown
    assert "app.setup_security()" in PAGE
    assert "app.setup_security()" in (ROOT / "tests" / "support" / "signed.py").read_text(encoding="utf-8")


def test_the_files_of_tls_are_those_that_the_tests_give() -> None:
    def keys(tree: ast.AST) -> list[list[str]]:
        dicts = [node for node in ast.walk(tree) if isinstance(node, ast.Dict)]
        return [[ast.literal_eval(key) for key in one.keys if key] for one in dicts if len(one.keys) == 4]

    assert keys(SNIPPETS[0]) == keys(of("secured"))
    assert re.findall(r"(ssl_\w+)=", PAGE.partition("A2A_STORE_URL=")[2].partition("```")[0]) == [
        "ssl_ca_certs",
        "ssl_certfile",
        "ssl_keyfile",
    ]
