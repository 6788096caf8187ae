"""``a2a get TASK --tree``: the ancestors and descendants of a task of any caller, from the store."""

from __future__ import annotations

from collections.abc import Iterator

import click

from ...cli.operator.selection import missing_task, operator_store
from ...cli.output import json_line, printable
from ...client import state_name
from ...store import Keys, SyncStore
from .family import Family, Relative, read_family
from .section import MAX_DEPTH

MAX_TREE = 1000
"""Maximum number of tasks that --tree shows."""

NOT_STORED = "not in the store"


def tree(store: SyncStore, keys: Keys, family: Family) -> Iterator[tuple[int, str, Relative]]:
    """Yield the tasks of a family as (depth, parent id, task), starting with the topmost known ancestor, which may no
    longer be in the store."""
    root = family
    for _ in range(MAX_DEPTH):
        above = None if root.parent is None else store.run(read_family(keys, None, root.parent.task_id))
        if above is None:
            break
        root = above
    if root.parent is not None:
        yield 0, "", root.parent
    first_depth = 0 if root.parent is None else 1
    pending = [(first_depth, root.parent.task_id if root.parent else "", root.task)]
    while pending:
        depth, parent_id, task = pending.pop()
        yield depth, parent_id, task
        relatives = root if task is root.task else store.run(read_family(keys, None, task.task_id))
        children = () if relatives is None else relatives.children
        pending += [(depth + 1, task.task_id, child) for child in reversed(children)]


def show_tree(context: click.Context, *, task_id: str, agent: str | None, as_lines: bool) -> None:
    """Print a task with its ancestors and descendants."""
    with operator_store(context, agent) as (a2a, store, keys):
        family = store.run(read_family(keys, None, task_id))
        if family is None or agent not in (None, family.task.agent):
            raise missing_task(a2a, task_id, agent)
        for number, (depth, parent_id, task) in enumerate(tree(store, keys, family)):
            if number == MAX_TREE:
                click.echo(
                    f"the tree has more than {MAX_TREE} tasks: pass the id of a task lower in the tree", err=True
                )
                return
            if as_lines:
                fields = {"depth": depth, "parent": parent_id or None}
                click.echo(json_line(task.to_dict() | fields))
            else:
                click.echo(_relative_line(depth, task, is_named=task.task_id == task_id))


def _relative_line(depth: int, task: Relative, *, is_named: bool) -> str:
    state = NOT_STORED if task.state is None else state_name(task.state)
    survives = "" if task.cancels else "  not cancelled with its parent"
    agent = f"  {task.agent}" if task.agent else ""
    return printable(f"{'  ' * depth}{task.task_id}{agent}  {state}{survives}{'  <' if is_named and depth else ''}")
