"""``a2a-celery call``: a conversation with any A2A agent, from a terminal or a script."""

from __future__ import annotations

import asyncio
import getpass
import sys
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from a2a.helpers import new_text_part
from a2a.types import Message, Part, TaskState
from a2a.utils.errors import A2AError, InvalidParamsError

from ...client import AgentSession, AnswerField, AnswerRefused, InputRequest, RemoteAgent, RemoteError, state_name
from ...client.connection.transports import ANY_HOST
from ...client.input_request import NO, YES
from ...errors import ConfigError
from ...lifecycle.answers import example_texts
from ..output import EventPrinter, error_line, field_prompt, printable
from .credentials import credentials_of, with_credentials
from .saved_files import save_files, save_option
from .task_commands import parts_of

EXIT_CODES: dict[int, int] = {
    TaskState.TASK_STATE_COMPLETED: 0,
    TaskState.TASK_STATE_FAILED: 1,
    TaskState.TASK_STATE_REJECTED: 3,
    TaskState.TASK_STATE_CANCELED: 4,
    TaskState.TASK_STATE_INPUT_REQUIRED: 5,
    TaskState.TASK_STATE_AUTH_REQUIRED: 6,
}
"""Exit codes by the task's final state. The exit code is also 0 for a direct message, 1 for an error, and 2 for an
invalid command line."""

INTERRUPTED = 130
"""Exit code if Ctrl-C leaves the task running, or arrives before the task's id is known. Shells report 130 for a
program that SIGINT ended."""


@click.command()
@click.argument("url")
@click.argument("text", required=False)
@click.option("--data", help="A data part, as JSON, with the text or without.")
@with_credentials
@click.option("--tenant", default="", help="The tenant of the task.")
@click.option("--json", "as_lines", is_flag=True, help="Print one line of ProtoJSON per event.")
@save_option
@click.option("--no-input", is_flag=True, help="Never prompt: exit when the agent needs input.")
@click.pass_context
def call(
    context: click.Context,
    /,
    url: str,
    text: str | None,
    data: str | None,
    header: tuple[str, ...],
    bearer_file: Path | None,
    api_key_file: Path | None,
    tenant: str,
    as_lines: bool,
    save: Path | None,
    no_input: bool,
) -> None:
    """Send TEXT to the agent at URL and show its events.

    Prompts you when the agent needs input. On a terminal, prompts for each field of a question with a schema. Ctrl-C
    cancels the task, and a second Ctrl-C leaves it running. The exit code is 0 for COMPLETED, 1 for FAILED, 3 for
    REJECTED, 4 for CANCELED, 5 for INPUT_REQUIRED and 6 for AUTH_REQUIRED.
    """
    parts = parts_of(text, data)
    try:
        agent = RemoteAgent(url, hosts=ANY_HOST, tenant=tenant, **credentials_of(header, bearer_file, api_key_file))
        with asyncio.Runner() as runner:
            try:
                conversation = TerminalConversation(
                    runner, agent.session(), EventPrinter(as_lines=as_lines), asks=not no_input
                )
                code = conversation.hold(parts)
            finally:
                runner.run(agent.close())
    except (A2AError, RemoteError, ConfigError) as e:
        raise click.ClickException(error_line(e)) from e
    if save is not None:
        save_files(conversation.session.result, save)
    context.exit(code)


def filled_form(request: InputRequest) -> Message:
    """Prompt for the fields of an answer until the answer fits the schema, and return the answer.

    Raises:
        EOFError: The input ended.
    """
    answer = _short_answer(request)
    while answer is None:
        values = {field.name: value for field in request.fields if (value := _field_value(field)) is not None}
        try:
            answer = request.answer(values.get("") if "" in {field.name for field in request.fields} else values)
        except (AnswerRefused, TypeError) as e:
            click.echo(error_line(e), err=True)
    return answer


def _short_answer(request: InputRequest) -> Message | None:
    """Prompt for a text such as "yes" that answers all fields, if the schema accepts one.

    Returns:
        The answer, or None if the user must fill in the fields.

    Raises:
        EOFError: The input ended.
    """
    texts = example_texts(request.schema or {})
    if not texts or [field.kind for field in request.fields] == ["boolean"]:
        return None
    words = printable(" or ".join(texts))
    while True:
        click.echo(f"Answer ({words} for everything, or empty for a prompt for each field): ", nl=False, err=True)
        text = input().strip()
        if not text:
            return None
        try:
            return request.answer("yes" if text.lower() in YES else "no" if text.lower() in NO else text)
        except (AnswerRefused, TypeError):
            click.echo(f"enter {words}, or nothing", err=True)


def _field_value(field: AnswerField) -> Any:
    """Return the value that the user enters for a field, or None if an optional field is left empty."""
    while True:
        click.echo(field_prompt(field), nl=False, err=True)
        text = input()
        if not text.strip() and not field.required:
            return None
        try:
            return field.parse(text)
        except ValueError as e:
            click.echo(error_line(e), err=True)


@dataclass(frozen=True, slots=True)
class TerminalConversation:
    """Conversation on a terminal. Each turn runs on `runner`. On Ctrl-C, `runner` cancels the turn and raises
    KeyboardInterrupt."""

    runner: asyncio.Runner
    session: AgentSession
    printer: EventPrinter
    asks: bool

    def hold(self, content: list[Part] | Message) -> int:
        """Run turns as long as the agent needs input and the user provides it. Return the exit code."""
        try:
            while True:
                self._take_turn(content)
                if not (self.asks and self.session.is_interrupted):
                    return self._code()
                answer = self._answer()
                if answer is None:
                    return self._code()
                content = answer
        except KeyboardInterrupt:
            return self._handle_interrupt()

    def _take_turn(self, content: list[Part] | Message) -> None:
        """Run a turn. If the agent refuses the answer to a form, show the reason and keep the question open."""
        previous_result = self.session.result
        try:
            self.runner.run(self._turn(content))
        except InvalidParamsError as e:
            if not isinstance(content, Message):
                raise
            click.echo(error_line(e), err=True)
            self.session.result = previous_result

    async def _turn(self, content: list[Part] | Message) -> None:
        try:
            async with aclosing(self.session.stream(content)) as events:
                async for event in events:
                    self.printer.show(event)
        finally:
            self.printer.end_line()

    def _answer(self) -> list[Part] | Message | None:
        """Return the user's answer, or None at the end of input. Credentials are read without echo."""
        request = InputRequest.of(self.session.result)
        try:
            if self.session.state == TaskState.TASK_STATE_AUTH_REQUIRED:
                return [new_text_part(getpass.getpass("> "))]
            if request is not None and request.fields and sys.stdin.isatty():
                return filled_form(request)
            click.echo("> ", nl=False, err=True)
            return [new_text_part(input())]
        except EOFError:
            click.echo(err=True)
            return None

    def _handle_interrupt(self) -> int:
        """Cancel the task if its id is known, and return the exit code. A second Ctrl-C leaves the task running."""
        task_id = self.session.task_id
        if not task_id:
            click.echo("\nno task is known yet: nothing was cancelled", err=True)
            return INTERRUPTED
        try:
            click.echo(f"\ncancelling task {printable(task_id)}; Ctrl-C again leaves it running", err=True)
            self.runner.run(self._cancel())
        except KeyboardInterrupt:
            click.echo(f"\nleft task {printable(task_id)} running", err=True)
            return INTERRUPTED
        return self._code()

    async def _cancel(self) -> None:
        result = await self.session.cancel()
        if result.stop_reason != "end_turn":
            result = await self.session.wait()
        click.echo(f"the task is {state_name(result.state)}", err=True)

    def _code(self) -> int:
        result = self.session.result
        if result.state is None and result.stop_reason is None:
            raise click.ClickException("the agent's answer is neither a message nor a task with a state")
        return 0 if result.state is None else EXIT_CODES.get(result.state, 1)
