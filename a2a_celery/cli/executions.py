"""``celery -A … a2a get TASK --execution``: what the runs of a task went through, for an operator; from the store."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import update_wrapper
from typing import Any

import click

from ..client import state_name
from ..lifecycle.execution import ENDS
from ..lifecycle.steps import Step
from ..store.steps import Steps, read_steps
from .operating import duration, operated_store
from .show import table

HEADING = ("RUN", "ATTEMPT", "STATE", "WHEN", "FOR", "WHAT", "WORKER")
OF_A_GATEWAY = {"url": "--url", "header": "--header"}
"""Options of ``get`` that mean nothing here."""

LOST = "lost"
"""For how long a run was in its last known step, if its end was written by others: what came between is not known."""


@dataclass(frozen=True, slots=True)
class Lasted:
    """A step, and for how many seconds the run was in its state; None: it ended there, or that is not known.
    `open`: it still is."""

    step: Step
    seconds: float | None
    open: bool = False

    def row(self) -> tuple[str, ...]:
        """For people: as `HEADING` says."""
        step, made = self.step, self.step.transition
        what = ", ".join(f"{name} {value}" for name, value in made.detail.items())
        at = made.at.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
        return (f"{step.run}", f"{step.attempt}", made.after, at, self._how_long(), what or "-", step.runner)

    def as_json(self, task_id: str, agent: str) -> str:
        """For scripts."""
        step, made = self.step, self.step.transition
        fields: dict[str, Any] = {
            "task": task_id,
            "agent": agent,
            "run": step.run,
            "attempt": step.attempt,
            "worker": step.runner,
            "number": made.number,
            "from": made.before,
            "state": made.after,
            "at": made.at.isoformat(),
            "seconds": None if self.seconds is None else round(self.seconds, 6),
            "open": self.open,
            "detail": dict(made.detail),
        }
        return json.dumps(fields, ensure_ascii=False)

    def _how_long(self) -> str:
        if self.seconds is None:
            return "-" if self.step.transition.after in ENDS else LOST
        said = f"{self.seconds:.3f} s" if self.seconds < 60 else duration(self.seconds)
        return f"{said} so far" if self.open else said


def or_execution(command: Callable[..., Any]) -> Callable[..., Any]:
    """Gives the ``get`` command the option --execution, which asks the store instead of a gateway."""

    def run(context: click.Context, /, execution: bool, **rest: Any) -> Any:
        if not execution:
            return command(**rest)
        if rest["store"]:
            raise click.UsageError("--execution asks the store anyway: leave out --store")
        for name, option in OF_A_GATEWAY.items():
            if rest[name]:
                raise click.UsageError(f"--execution asks the store and no gateway: leave out {option}")
        return _show(context, rest["task"], rest["agent"], rest["as_lines"])

    return click.option(
        "--execution",
        is_flag=True,
        help="What its runs went through: states, when, for how long, on which worker. Reads A2A_STORE_URL, needs no "
        "gateway.",
    )(click.pass_context(update_wrapper(run, command)))


def lasted(steps: Steps) -> Iterator[Lasted]:
    """Each step, with how long it lasted."""
    for n, step in enumerate(steps.steps):
        following = steps.steps[n + 1] if n + 1 < len(steps.steps) else None
        if step.transition.after in ENDS:
            yield Lasted(step, None)
        elif following is not None and _goes_on(step, following):
            yield Lasted(step, (following.transition.at_us - step.transition.at_us) / 1_000_000)
        elif following is None and steps.running and step.run == steps.run:
            yield Lasted(step, max(0, steps.now_us - step.transition.at_us) / 1_000_000, open=True)
        else:
            yield Lasted(step, None)


def _goes_on(step: Step, following: Step) -> bool:
    return (step.run, step.runner) == (following.run, following.runner) and (
        following.transition.number == step.transition.number + 1
    )


def _show(context: click.Context, task_id: str, agent: str | None, as_lines: bool) -> None:
    with operated_store(context, agent) as (_, store, keys):
        found = store.run(read_steps(keys, task_id))
    if found is None or agent not in (None, found.agent):
        raise click.ClickException(f"no task {task_id}" + (f" of {agent}" if agent else ""))
    rows = list(lasted(found))
    if as_lines:
        for one in rows:
            click.echo(one.as_json(task_id, found.agent))
        return
    click.echo(f"task {task_id} ({found.agent}, context {found.context_id}): {state_name(found.state)}")
    if not rows:
        click.echo("no step of a run is written yet: none has begun, or it began just now")
        return
    for line in table(HEADING, [one.row() for one in rows]):
        click.echo(line)
