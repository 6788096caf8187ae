"""``celery -A … a2a deliveries``: shows pending and given-up webhook deliveries, and replays the given-up ones."""

from __future__ import annotations

from typing import Any

import click

from ...cli.completion import complete_agent
from ...cli.operator.selection import operator_store, require_agent
from ...cli.options import with_options
from ...cli.output import Column, Table, duration, json_line, printable, time_of
from ...store import Keys, SyncStore
from . import deliveries as lines
from .deliveries import Attempt, Delivery, read_delivery, reason_of, replay_delivery

_list_options = with_options(
    click.option("--dead", is_flag=True, help="Only deliveries that were given up."),
    click.option("--agent", shell_complete=complete_agent, help="Only for tasks of this agent."),
    click.option("--json", "as_lines", is_flag=True, help="Print one line of JSON per webhook."),
)


@click.group(invoke_without_command=True)
@_list_options
@click.pass_context
def deliveries(context: click.Context, /, **options: Any) -> None:
    """Show and replay webhook deliveries.

    Without a sub-command, lists them with the options of list.
    """
    if context.invoked_subcommand is None:
        context.invoke(list_deliveries, **options)
    elif any(options.values()):
        raise click.UsageError(f"--dead, --agent and --json belong after the sub-command: {context.invoked_subcommand}")


@deliveries.command(name="list")
@_list_options
@click.pass_context
def list_deliveries(context: click.Context, dead: bool, agent: str | None, as_lines: bool) -> None:
    """List pending webhook deliveries and deliveries that were given up.

    A webhook receives its events in order, so an event that fails delays all later ones. After a day of attempts, the
    delivery is given up. Use replay to post the missed events.
    """
    with operator_store(context, None) as (a2a, store, keys):
        delivery_list = [delivery for delivery in _all(store, keys, dead) if agent in (None, delivery.agent)]
        require_agent(a2a, agent, has_tasks=bool(delivery_list))
    empty = "no delivery was given up" if dead else "no webhook waits for an event, no delivery was given up"
    DELIVERIES.print(delivery_list, as_lines, empty)


@deliveries.command()
@click.argument("task")
@click.argument("webhook")
@click.option("--json", "as_lines", is_flag=True, help="Print one line of JSON.")
@click.pass_context
def show(context: click.Context, task: str, webhook: str, as_lines: bool) -> None:
    """Show one WEBHOOK of TASK with its latest attempts, as JSON.

    WEBHOOK is the id of the push notification config.
    """
    with operator_store(context, None) as (_, store, keys):
        delivery = store.run(read_delivery(keys, task, webhook))
    if delivery is None:
        raise _missing_webhook(task, webhook)
    fields = delivery_fields(delivery) | {
        "requested": list(delivery.requested),
        "attempts": [_attempt(attempt) for attempt in delivery.attempts],
    }
    click.echo(json_line(fields, indent=None if as_lines else 2))


@deliveries.command()
@click.argument("task", required=False)
@click.argument("webhook", required=False)
@click.option("--all", "everything", is_flag=True, help="Replay all deliveries that were given up.")
@click.option("--json", "as_lines", is_flag=True, help="Print one line of JSON per webhook.")
@click.pass_context
def replay(context: click.Context, task: str | None, webhook: str | None, everything: bool, as_lines: bool) -> None:
    """Retry deliveries that were given up.

    WEBHOOK of TASK receives its events, starting with the first missed event.
    """
    if everything == (task is not None) or (task is not None and webhook is None):
        raise click.UsageError("pass a TASK and its WEBHOOK, or --all")
    with operator_store(context, None) as (_, store, keys):
        if task is not None and webhook is not None:
            pairs = [(task, webhook)]
        else:
            pairs = [(r.task_id, r.config_id) for r in _all(store, keys, True)]
        for task_id, config_id in pairs:
            outcome = store.run(replay_delivery(keys, task_id, config_id))
            name = printable(f"webhook {config_id} of task {task_id}")
            if outcome == "missing" and not everything:
                raise _missing_webhook(task_id, config_id)
            if outcome != "missing" and as_lines:
                click.echo(json_line({"task": task_id, "webhook": config_id, "replayed": outcome == "replayed"}))
            elif outcome == "replayed":
                click.echo(f"{name} is due again")
            elif outcome == "alive":
                click.echo(f"the delivery to {name} was not given up, or is already due again")
        if not pairs and not as_lines:
            click.echo("no delivery was given up")


def _all(store: SyncStore, keys: Keys, dead: bool) -> list[Delivery]:
    all_deliveries = [] if dead else list(lines.deliveries(store, keys))
    all_deliveries += lines.deliveries(store, keys, dead=True)
    return sorted(all_deliveries, key=lambda each: (each.died_us or each.due_us, each.task_id, each.config_id))


def _missing_webhook(task: str, webhook: str) -> click.ClickException:
    return click.ClickException(f"task {task} has no webhook {webhook}, or a2a_retention has passed")


def _due_time(delivery: Delivery) -> str:
    if delivery.died_us:
        return "replay it"
    if delivery.is_leased:
        return "now"
    return f"in {duration((delivery.due_us - delivery.now_us) / 1_000_000)}"


def delivery_fields(delivery: Delivery) -> dict[str, Any]:
    """Return a delivery as a JSON object for scripts. Unset times are omitted."""
    times = {
        "failingSince": delivery.first_failed_us,
        "due": 0 if delivery.died_us else delivery.due_us,
        "failedAt": delivery.failure_us,
        "givenUpAt": delivery.died_us,
    }
    return {
        "task": delivery.task_id,
        "webhook": delivery.config_id,
        "agent": delivery.agent,
        "contextId": delivery.context_id,
        "state": delivery.state,
        "delivered": delivery.delivered,
        "lastEvent": delivery.version,
        "failures": delivery.failures,
        "leased": delivery.is_leased,
        **{name: _iso(at) for name, at in times.items() if at},
        **delivery.failure,
    }


def _attempt(attempt: Attempt) -> dict[str, Any]:
    fields = {
        "post": attempt.post,
        "outcome": attempt.outcome,
        "status": attempt.status,
        "latencyMs": attempt.latency_ms,
        "reason": attempt.reason,
        "nextTry": _iso(attempt.next_us) if attempt.next_us else "",
    }
    return {"time": _iso(attempt.at_us), **{name: value for name, value in fields.items() if value not in ("", None)}}


def _iso(at_us: int) -> str:
    return time_of(at_us).isoformat()


DELIVERIES = Table[Delivery](
    [
        Column("TASK", "", lambda delivery: delivery.task_id),
        Column("WEBHOOK", "", lambda delivery: delivery.config_id),
        Column("STATE", "", lambda delivery: delivery.state),
        Column("EVENTS", "", lambda delivery: f"{delivery.delivered} of {delivery.version}"),
        Column("TRIES", "", lambda delivery: delivery.failures),
        Column("NEXT", "", _due_time),
        Column("WHY", "", lambda delivery: " ".join(reason_of(delivery.failure).split())),
    ],
    fields_of=delivery_fields,
    fixed=["WEBHOOK"],
)
