"""Use of the store's commands that change a task on behalf of a caller, and of the publisher: only the service, the
feature that requeues tasks, and the modules that docs/architecture/message.md names, use them."""

from __future__ import annotations

import ast
import re

import pytest

from tests.support import ROOT

from .source import PACKAGE, Module, modules

COMMANDS = ("create_task", "continue_task", "request_cancel", "send_signal", "requeue_task", "mark_published")

USERS = {
    *(f"{PACKAGE}/operations/{name}.py" for name in ("service", "requests", "publication")),
    f"{PACKAGE}/features/dead_letters/requeue.py",
}


def uses(module: Module, command: str) -> bool:
    """Return True if a module imports a command of the store, or the module of the command and then the command."""
    if not module.mentions([command]):
        return False
    imports = [name for name, _ in module.imports if name.startswith((f"{PACKAGE}.store.", f"{PACKAGE}.features."))]
    attributes = {
        node.attr
        for node in module.nodes
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in ("tasks", "commands", "signals", "publication", "dead_letter")
    }
    return any(name.endswith(f".{command}") for name in imports) or command in attributes


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_has_one_user_outside_the_store(command: str) -> None:
    others = [module for module in modules(PACKAGE) if not module.name.startswith(f"{PACKAGE}/store/")]

    users = {module.name for module in others if uses(module, command)}

    assert len(users) == 1
    assert users < USERS


def test_runs_are_published_where_the_page_says() -> None:
    page = (ROOT / "docs" / "architecture" / "message.md").read_text(encoding="utf-8")
    section = page.split("## Service and senders", 1)[1].split("\n## ", 1)[0]
    publishers = {f"{PACKAGE}/dispatch/publisher.py", f"{PACKAGE}/testing/publisher.py"}

    senders = {
        module.name
        for module in modules(PACKAGE)
        if module.name not in publishers
        and any(isinstance(n, ast.Attribute) and n.attr in ("publish_async", "publish_soon") for n in module.nodes)
    }

    assert senders == {f"{PACKAGE}/{name}" for name in re.findall(r"^\| `([\w/]+\.py)` \|", section, re.MULTILINE)} | {
        f"{PACKAGE}/operations/publication.py"
    }
