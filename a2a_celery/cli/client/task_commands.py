"""``celery -A … a2a send | get | tail | cancel | list``: an A2A client that calls a gateway.

The commands use A2A with the same authentication as any other client, and need no access to Redis. Operator options
such as ``list --all``, ``get --execution`` and ``get --store`` read the store instead.
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
from a2a.helpers import get_message_text, new_data_part, new_message, new_text_part
from a2a.types import (
    AgentCard,
    AgentInterface,
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    Part,
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
    StreamResponse,
    Task,
)
from a2a.utils.constants import PROTOCOL_VERSION_CURRENT, TransportProtocol
from a2a.utils.errors import A2AError, TaskNotFoundError
from google.protobuf import json_format

from ...client import AgentUnreachable, CallRefused, NotConnected, RemoteAgent, RemoteError, Result
from ...client.connection.transports import ANY_HOST, Credentials, CredentialsInterceptor, tenant_error
from ...client.errors import translate_errors
from ...errors import ConfigError
from ...lifecycle.json_values import INEXACT, inexact_place
from ...lifecycle.outcomes import WORKER_LOST
from ..app_loader import dev_url, load_a2a, unknown_agent
from ..completion import complete_agent, complete_open_task
from ..operator.list_tasks import STORE_OPTIONS, with_list_options
from ..operator.selection import selecting
from ..operator.stored_task import require_task, with_cancel_options, with_get_options, with_tail_options
from ..options import with_options
from ..output import STATE_PREFIX, TASKS, EventPrinter, error_line, print_task, printable
from .credentials import API_KEY, BEARER, credentials_of, with_credentials
from .saved_files import save_files, save_option

DEFAULT_URL = "http://127.0.0.1:8000"
CONNECT_TIMEOUT = 10.0
RECONNECT_TIMEOUT = 60.0
"""Seconds without a response after which a command no longer tries to resume a stream."""

PAGE = 50

PLAIN_JSON = {
    "get": "--tree or --execution",
    "cancel": "--all",
    "list_": f"{', '.join(STORE_OPTIONS[:-1])} or {STORE_OPTIONS[-1]}",
}
"""Options with which ``--json`` prints objects that are not messages of A2A, by the name of the command's function."""


@dataclass(frozen=True, slots=True)
class Gateway:
    """Gateway that a command calls, with the names of its agents, the credentials to send, and the tenant or ""."""

    url: str
    agents: tuple[str, ...]
    credentials: Credentials
    tenant: str = ""

    async def card(self, name: str) -> AgentCard:
        """Return the card of an agent, with this gateway's URL as its only interface."""
        url = f"{self.url}/agents/{name}"
        async with _http_client() as http:
            headers = await self.credentials.headers()
            card = await A2ACardResolver(http, url).get_agent_card(http_kwargs={"headers": headers})
        del card.supported_interfaces[:]
        card.supported_interfaces.append(
            AgentInterface(
                url=f"{url}/",
                protocol_binding=TransportProtocol.JSONRPC,
                protocol_version=PROTOCOL_VERSION_CURRENT,
                tenant=self.tenant,
            )
        )
        return card

    @asynccontextmanager
    async def agent(self, card: AgentCard) -> AsyncIterator[Client]:
        """Open a client for calls to the agent with `card` that do not stream."""
        async with _http_client() as http:
            config = ClientConfig(streaming=False, httpx_client=http)
            with translate_errors(self.url):
                yield ClientFactory(config).create(card, [CredentialsInterceptor(self.credentials)])

    def streaming_agent(self, card: AgentCard) -> RemoteAgent:
        """Return a client that resumes the streams of the agent with `card` when their connections are lost."""
        return RemoteAgent(
            card.supported_interfaces[0].url,
            card=card,
            headers=lambda: self.credentials.headers(card),
            reconnect_timeout=RECONNECT_TIMEOUT,
            hosts=ANY_HOST,
        )

    async def find(self, task_id: str) -> tuple[str, AgentCard, Task]:
        """Query each agent for the task. Return the name and the card of the task's agent, and the task.

        Raises:
            TaskNotFoundError: No agent has the task, or the credentials do not allow access to the task.
        """
        for name in self.agents:
            card = await self.card(name)
            async with self.agent(card) as client:
                try:
                    return name, card, await client.get_task(GetTaskRequest(id=task_id))
                except TaskNotFoundError:
                    continue
        raise TaskNotFoundError(f"no task {task_id} of {', '.join(self.agents)} at {self.url}")


def _http_client() -> httpx.AsyncClient:
    # an agent may send nothing for a long time
    return httpx.AsyncClient(timeout=httpx.Timeout(CONNECT_TIMEOUT, read=None))


def client_command(command: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Wrap a coroutine function in a click callback that passes a `Gateway` as the first argument.

    An error is printed as one line, and the exit code is 1.
    """

    def run(
        context: click.Context,
        /,
        url: str | None,
        header: tuple[str, ...],
        bearer_file: Path | None,
        api_key_file: Path | None,
        agent: str | None = None,
        tenant: str | None = None,
        **rest: Any,
    ) -> None:
        a2a = load_a2a(context)
        if agent is not None and agent not in a2a.agents:
            raise unknown_agent(a2a, agent)
        if url is None:
            # not `settings`, which requires a store that this command does not need
            app = a2a.celery
            url = os.environ.get("A2A_PUBLIC_URL") or app.conf.get("a2a_public_url") or dev_url(app) or DEFAULT_URL
        names = tuple(a2a.agents) if agent is None else (agent,)
        arguments = credentials_of(header, bearer_file, api_key_file)
        if error := tenant_error(tenant or ""):
            raise ConfigError(error)
        gateway = Gateway(url.rstrip("/"), names, Credentials(**arguments), tenant or "")
        try:
            asyncio.run(command(gateway, **rest))
        except (A2AError, RemoteError, httpx.HTTPError, httpx.InvalidURL) as e:
            raise click.ClickException(_explain(e, gateway.url)) from e

    plain = f", or of plain JSON with {PLAIN_JSON[command.__name__]}" if command.__name__ in PLAIN_JSON else ""
    # click stores the parameters in attributes of the coroutine function, which `update_wrapper` copies
    return with_options(
        click.option(
            "--url",
            help=f"The gateway. Default: A2A_PUBLIC_URL, a2a_public_url, the gateway of a2a dev, or {DEFAULT_URL}.",
        ),
        with_credentials,
        click.option("--json", "as_lines", is_flag=True, help=f"Print one line of ProtoJSON per event or task{plain}."),
    )(click.pass_context(update_wrapper(run, command)))


_one_agent = click.option(
    "--agent", shell_complete=complete_agent, help="The agent of the task. Default: ask all agents."
)
_tenant = click.option("--tenant", help="The tenant of the task.")


@click.command()
@client_command
@click.argument("agent", shell_complete=complete_agent)
@click.argument("text", required=False)
@click.option("--data", help="A data part, as JSON, with the text or without.")
@click.option("--task", shell_complete=complete_open_task, help="The task that the message continues.")
@click.option("--context", "context_id", help="The context of the new task.")
@_tenant
@click.option("--stream/--no-stream", default=True, help="Show events as they happen, or only the final task.")
@click.option("--return-immediately", is_flag=True, help="Show the task as soon as it is accepted.")
@save_option
async def send(
    gateway: Gateway,
    *,
    text: str | None,
    data: str | None,
    task: str | None,
    context_id: str | None,
    stream: bool,
    return_immediately: bool,
    save: Path | None,
    as_lines: bool,
) -> None:
    """Send TEXT to AGENT and show the task's events."""
    if save is not None and return_immediately:
        raise click.UsageError("--save needs the end of the task: leave out --return-immediately")
    message = new_message(parts_of(text, data), context_id=context_id, task_id=task, role=Role.ROLE_USER)
    (name,) = gateway.agents
    card = await gateway.card(name)
    if stream and not return_immediately and card.capabilities.streaming:
        async with gateway.streaming_agent(card) as agent:
            result = await _show_events(agent.stream(message), as_lines)
    else:
        configuration = SendMessageConfiguration(return_immediately=return_immediately)
        request = SendMessageRequest(message=message, configuration=configuration)
        async with gateway.agent(card) as client:
            result = await _show_events(client.send_message(request), as_lines)
    if save is not None:
        save_files(result, save)


@click.command()
@with_get_options
@client_command
@click.argument("task_id", metavar="TASK", shell_complete=complete_open_task)
@_one_agent
@_tenant
async def get(gateway: Gateway, *, task_id: str, as_lines: bool) -> None:
    """Show TASK, the steps of its runs, or its related tasks."""
    name, _, task = await gateway.find(task_id)
    print_task(task, as_lines, name)
    if not as_lines and get_message_text(task.status.message) == WORKER_LOST:
        click.echo("a2a requeue lists the tasks of lost workers that can run again")


@click.command()
@with_tail_options
@client_command
@click.argument("task_id", metavar="TASK", shell_complete=complete_open_task)
@_one_agent
@_tenant
async def tail(gateway: Gateway, *, task_id: str, as_lines: bool) -> None:
    """Show TASK and its events until it ends or pauses."""
    name, card, _ = await gateway.find(task_id)
    if not card.capabilities.streaming:
        raise click.ClickException(f"the agent {name} does not stream: poll with a2a get {task_id}")
    async with gateway.streaming_agent(card) as agent:
        await _show_events(agent.follow(task_id), as_lines)


@click.command()
@with_cancel_options
@client_command
@click.argument("task_id", metavar="[TASK]", required=False, shell_complete=complete_open_task)
@_one_agent
async def cancel(gateway: Gateway, *, task_id: str | None, as_lines: bool) -> None:
    """Cancel TASK, or all open tasks with --all.

    TASK is shown when its agent has stopped. Without --store, TASK must be a task of the caller.
    """
    task_id = require_task(task_id)
    _, card, _ = await gateway.find(task_id)
    async with gateway.agent(card) as client:
        print_task(await client.cancel_task(CancelTaskRequest(id=task_id)), as_lines)


@click.command(name="list")
@with_list_options
@client_command
@click.option("--agent", shell_complete=complete_agent, help="Only the tasks of this agent.")
@selecting("state", "context_id")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(min=1), help="Maximum number of tasks.")
async def list_(gateway: Gateway, *, state: str | None, context_id: str | None, limit: int, as_lines: bool) -> None:
    """List tasks, most recently changed first.

    A gateway lists the caller's tasks. With --all, --stuck or the filter of a feature, the command lists the
    tasks of all callers, from the store.
    """
    state_name = STATE_PREFIX + (state or "unspecified").upper()
    found_tasks: list[tuple[str, Task]] = []
    for name in gateway.agents:
        tasks = await _newest(gateway, name, state_name, context_id or "", limit + 1)
        found_tasks += [(name, task) for task in tasks]
    found_tasks.sort(key=lambda each: each[1].status.timestamp.ToNanoseconds(), reverse=True)
    TASKS.print(found_tasks, as_lines, limit=limit)


async def _newest(gateway: Gateway, name: str, state: str, context_id: str, limit: int) -> list[Task]:
    """Return the `limit` most recently changed tasks of an agent."""
    tasks: list[Task] = []
    token = ""
    async with gateway.agent(await gateway.card(name)) as client:
        while True:
            size = min(PAGE, limit - len(tasks))
            page = await client.list_tasks(
                ListTasksRequest(status=state, context_id=context_id, page_size=size, page_token=token)
            )
            tasks += page.tasks
            token = page.next_page_token
            if not token or len(tasks) >= limit:
                return tasks


async def _show_events(events: AsyncIterator[StreamResponse], as_lines: bool) -> Result:
    """Show events as they arrive, and return their result.

    Raises:
        click.ClickException: The stream was lost and cannot be resumed.
    """
    printer = EventPrinter(as_lines=as_lines)
    try:
        async for event in events:
            printer.show(event)
    except AgentUnreachable as e:
        task_id = printer.result().task_id
        if not task_id:
            raise
        raise click.ClickException(printable(f"{e}; the task continues: a2a tail {task_id}")) from e
    finally:
        printer.end_line()
    return printer.result()


def parts_of(text: str | None, data: str | None) -> list[Part]:
    """Return the parts of a message with a text, JSON data, or both.

    Raises:
        click.UsageError: `text` and `data` are both None, or `data` is not valid JSON.
    """
    parts = [new_text_part(text)] if text is not None else []
    if data is not None:
        try:
            value = json.loads(data)
            if (place := inexact_place(value)) is not None:
                raise click.BadParameter(f"{place.lstrip('.') or 'the number'}: {INEXACT}", param_hint="--data")
            part = new_data_part(value)
            json_format.MessageToDict(part)  # raises an error for NaN and 1e400, which the parser accepts
            parts.append(part)
        except (ValueError, RecursionError, json_format.Error) as e:
            raise click.BadParameter(f"not JSON: {e}", param_hint="--data") from e
    if not parts:
        raise click.UsageError("nothing to send: pass TEXT or --data")
    return parts


def _explain(error: Exception, url: str) -> str:
    """Return a description of the error on one line, with a remedy if one is known."""
    cause = error.__cause__ if isinstance(error.__cause__, httpx.HTTPError) else error
    if isinstance(cause, httpx.ConnectError | httpx.ConnectTimeout | NotConnected):
        return f"no gateway at {url}: start one with celery -A … a2a gateway, or pass its address with --url"
    if isinstance(error, AgentCardResolutionError) and isinstance(cause, httpx.HTTPStatusError):
        return f"{cause.request.url} answers {cause.response.status_code}: is {url} a gateway of this app?"
    is_unauthenticated = isinstance(cause, httpx.HTTPStatusError) and cause.response.status_code == 401
    if is_unauthenticated or (isinstance(error, CallRefused) and error.status == 401):
        return f"{url} requires authentication: pass --bearer-file or {BEARER}, --api-key-file or {API_KEY}"
    if isinstance(error, A2AError | RemoteError):
        return error_line(error)
    return f"{url}: {error_line(error)}"
