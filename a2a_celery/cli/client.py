"""``celery -A … a2a send | get | tail | cancel | list``: an A2A client, which asks a gateway as any other does.

Not the store: so they see what a client sees, under the same authentication, and work from where Redis is not reached.
Options such as ``list --all``, ``get --execution`` and ``get --store`` are an operator's, and ask the store.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import update_wrapper
from pathlib import Path
from typing import Any

import click
import httpx
from a2a.client import A2ACardResolver, AgentCardResolutionError, Client, ClientConfig, ClientFactory
from a2a.helpers import new_data_part, new_message, new_text_part
from a2a.types import (
    AgentInterface,
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    Part,
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
    SubscribeToTaskRequest,
    Task,
)
from a2a.utils.constants import PROTOCOL_VERSION_CURRENT, TransportProtocol
from a2a.utils.errors import A2AError, TaskNotFoundError, UnsupportedOperationError

from ..client.credentials import AddsHeaders, Credentials
from ..errors import ConfigError
from .cancel_all import or_all
from .credentials import API_KEY, BEARER, credentials_of, with_credentials
from .everybody import or_everybodys
from .executions import or_execution
from .location import with_agents
from .selection import STATES
from .show import STATE_PREFIX, as_json, error_line, event_line, task_lines, task_table
from .stored_task import cancel_task, or_store, show_task, tail_task
from .stuck import or_stuck

DEFAULT_URL = "http://127.0.0.1:8000"
CONNECT_TIMEOUT = 10.0
PAGE = 50


@dataclass(frozen=True, slots=True)
class Gateway:
    """The gateway that is asked, and the agents that it should have."""

    url: str
    agents: tuple[str, ...]
    credentials: Credentials

    @asynccontextmanager
    async def agent(self, name: str, *, streaming: bool = True) -> AsyncIterator[Client]:
        """A client of one agent. It asks this gateway, wherever the card's public address leads."""
        url = f"{self.url}/agents/{name}"
        timeout = httpx.Timeout(CONNECT_TIMEOUT, read=None)  # an agent may be silent for long
        async with httpx.AsyncClient(timeout=timeout) as http:
            headers = await self.credentials.headers()
            card = await A2ACardResolver(http, url).get_agent_card(http_kwargs={"headers": headers})
            del card.supported_interfaces[:]
            card.supported_interfaces.append(
                AgentInterface(
                    url=f"{url}/",
                    protocol_binding=TransportProtocol.JSONRPC,
                    protocol_version=PROTOCOL_VERSION_CURRENT,
                )
            )
            config = ClientConfig(streaming=streaming, httpx_client=http)
            yield ClientFactory(config).create(card, [AddsHeaders(self.credentials)])

    async def find(self, task_id: str) -> tuple[str, Task]:
        """The agent that has the task, and the task. Tasks belong to agents: each is asked in turn.

        Raises:
            TaskNotFoundError: none has it, or none that these credentials may see.
        """
        for name in self.agents:
            async with self.agent(name) as client:
                try:
                    return name, await client.get_task(GetTaskRequest(id=task_id))
                except TaskNotFoundError:
                    continue
        raise TaskNotFoundError(f"no task {task_id} of {', '.join(self.agents)} at {self.url}")


def client_command(command: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Makes a click callback of a coroutine that takes a `Gateway` first; an error is one clear line, exit code 1."""

    def run(
        context: click.Context,
        /,
        url: str | None,
        header: tuple[str, ...],
        bearer_file: Path | None,
        api_key_file: Path | None,
        agent: str | None = None,
        **rest: Any,
    ) -> None:
        found = with_agents(context)
        if agent is not None and agent not in found.agents:
            raise click.ClickException(f"no agent {agent!r}; this app has {', '.join(found.agents) or 'none'}")
        if url is None:
            # not `settings`: they insist on a store, and nobody asks it here
            url = os.environ.get("A2A_PUBLIC_URL") or found.celery.conf.get("a2a_public_url") or DEFAULT_URL
        names = tuple(found.agents) if agent is None else (agent,)
        gateway = Gateway(url.rstrip("/"), names, Credentials(**credentials_of(header, bearer_file, api_key_file)))
        try:
            asyncio.run(command(gateway, **rest))
        except ConfigError as e:
            raise click.ClickException(str(e)) from e
        except (A2AError, httpx.HTTPError, httpx.InvalidURL) as e:
            raise click.ClickException(_explained(e, gateway.url)) from e

    # the coroutine's own parameters come with its attributes
    callback = click.pass_context(update_wrapper(run, command))
    for option in (
        click.option("--json", "as_lines", is_flag=True, help="A line of ProtoJSON for each event or task."),
        with_credentials,
        click.option("--url", help=f"The gateway. Not given: A2A_PUBLIC_URL, a2a_public_url, else {DEFAULT_URL}."),
    ):
        callback = option(callback)
    return callback


_one_agent = click.option("--agent", help="The agent that has the task. Not given: each is asked.")


@click.command()
@client_command
@click.argument("agent")
@click.argument("text", required=False)
@click.option("--data", help="A data part beside the text, or instead of it: JSON.")
@click.option("--task", help="The task that the message continues.")
@click.option("--context", "context_id", help="The context that the new task belongs to.")
@click.option("--stream/--no-stream", default=True, help="Show events as they happen, or the task at its end.")
@click.option("--return-immediately", is_flag=True, help="Show the task as soon as it is accepted.")
async def send(
    gateway: Gateway,
    *,
    text: str | None,
    data: str | None,
    task: str | None,
    context_id: str | None,
    stream: bool,
    return_immediately: bool,
    as_lines: bool,
) -> None:
    """Send TEXT to AGENT and show what becomes of it."""
    message = new_message(parts_of(text, data), context_id=context_id, task_id=task, role=Role.ROLE_USER)
    configuration = SendMessageConfiguration(return_immediately=return_immediately)
    request = SendMessageRequest(message=message, configuration=configuration)
    async with gateway.agent(gateway.agents[0], streaming=stream and not return_immediately) as client:
        async for event in client.send_message(request):
            click.echo(as_json(event) if as_lines else event_line(event))


@click.command()
@or_execution
@or_store(show_task)
@client_command
@click.argument("task")
@_one_agent
async def get(gateway: Gateway, *, task: str, as_lines: bool) -> None:
    """Show TASK as it is now; or --execution, how it came there."""
    _, found = await gateway.find(task)
    _show(found, as_lines)


@click.command()
@or_store(tail_task)
@client_command
@click.argument("task")
@_one_agent
async def tail(gateway: Gateway, *, task: str, as_lines: bool) -> None:
    """Show TASK and what happens to it, until it ends or pauses."""
    name, found = await gateway.find(task)
    async with gateway.agent(name) as client:
        try:
            async for event in client.subscribe(SubscribeToTaskRequest(id=task)):
                click.echo(as_json(event) if as_lines else event_line(event))
        except NotImplementedError as e:
            raise click.ClickException(f"the agent {name} has no streaming: ask again with a2a get {task}") from e
        except UnsupportedOperationError:
            # it has ended; perhaps since it was read
            found = await client.get_task(GetTaskRequest(id=task))
            _show(found, as_lines)


@click.command()
@or_all
@or_store(cancel_task)
@client_command
@click.argument("task", required=False)
@_one_agent
async def cancel(gateway: Gateway, *, task: str, as_lines: bool) -> None:
    """Cancel TASK, or --all that are open.

    TASK, the caller's own, is shown when its agent has stopped.
    """
    name, _ = await gateway.find(task)
    async with gateway.agent(name) as client:
        _show(await client.cancel_task(CancelTaskRequest(id=task)), as_lines)


@click.command(name="list")
@or_stuck
@or_everybodys
@client_command
@click.option("--agent", help="Only the tasks of this agent.")
@click.option("--state", type=click.Choice(STATES, case_sensitive=False), help="Only tasks in this state.")
@click.option("--context", "context_id", help="Only tasks of this context.")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(min=1), help="The newest ones, so many.")
async def list_(gateway: Gateway, *, state: str | None, context_id: str | None, limit: int, as_lines: bool) -> None:
    """List tasks, the last changed first.

    A gateway shows its caller's tasks; --all and --stuck show everybody's, from the store.
    """
    wanted = STATE_PREFIX + (state or "unspecified").upper()
    rows: list[tuple[str, Task]] = []
    more = False
    for name in gateway.agents:
        found, left = await _newest(gateway, name, wanted, context_id or "", limit)
        rows += [(name, task) for task in found]
        more = more or left
    rows.sort(key=lambda row: row[1].status.timestamp.ToNanoseconds(), reverse=True)
    more = more or len(rows) > limit
    lines = (as_json(task) for _, task in rows[:limit]) if as_lines else task_table(rows[:limit])
    for line in lines:
        click.echo(line)
    if more and not as_lines:
        click.echo("… there are more: --limit")


async def _newest(gateway: Gateway, name: str, state: str, context_id: str, limit: int) -> tuple[list[Task], bool]:
    """The last changed tasks of one agent, at most `limit`, and whether there are more."""
    tasks: list[Task] = []
    token = ""
    async with gateway.agent(name) as client:
        while True:
            size = min(PAGE, limit - len(tasks))
            answer = await client.list_tasks(
                ListTasksRequest(status=state, context_id=context_id, page_size=size, page_token=token)
            )
            tasks += answer.tasks
            token = answer.next_page_token
            if not token or len(tasks) >= limit:
                return tasks[:limit], bool(token)


def _show(task: Task, as_lines: bool) -> None:
    click.echo(as_json(task) if as_lines else task_lines(task))


def parts_of(text: str | None, data: str | None) -> list[Part]:
    """What is to be sent.

    Raises:
        click.UsageError: nothing, or `data` is not JSON.
    """
    parts = [new_text_part(text)] if text is not None else []
    if data is not None:
        try:
            parts.append(new_data_part(json.loads(data)))
        except ValueError as e:
            raise click.BadParameter(f"not JSON: {e}", param_hint="--data") from e
    if not parts:
        raise click.UsageError("nothing to send: give TEXT or --data")
    return parts


def _explained(error: Exception, url: str) -> str:
    """What went wrong, in one line; says the remedy where there is one."""
    cause = error.__cause__ if isinstance(error.__cause__, httpx.HTTPError) else error
    if isinstance(cause, httpx.ConnectError | httpx.ConnectTimeout):
        return f"no gateway at {url}: start one with celery -A … a2a gateway, or name yours with --url"
    if isinstance(error, AgentCardResolutionError) and isinstance(cause, httpx.HTTPStatusError):
        return f"{cause.request.url} answers {cause.response.status_code}: is {url} a gateway of this app?"
    if isinstance(cause, httpx.HTTPStatusError) and cause.response.status_code == 401:
        return f"{url} does not know who you are: --bearer-file or {BEARER}, --api-key-file or {API_KEY}"
    if isinstance(error, A2AError):
        return error_line(error)
    return " ".join(f"{url}: {error}".split())
