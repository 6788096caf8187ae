"""Code and tables in docs/client.md. The code runs unchanged, and the tables match a2a_celery."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict

from a2a_celery import client
from a2a_celery.cli.client.call import EXIT_CODES, INTERRUPTED
from a2a_celery.client import errors, remote_agent, state_name
from a2a_celery.client.connection import card_cache, turn_stream
from a2a_celery.client.result import STOP_REASONS, Result
from tests.support.agents.states import States
from tests.support.processes.plain_server import plain_server

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "client.md").read_text(encoding="utf-8")
PEERS = ROOT / "tests" / "peers"


PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def program(number: int, url: str) -> dict[str, Any]:
    """Run a program of the page with the agent at `url`, and return the program's global variables."""
    text = PROGRAMS[number]
    namespace: dict[str, Any] = {"__name__": "service"}
    exec(compile(text.replace("https://agent.example.com", url), "client.md", "exec"), namespace)
    return namespace


def columns(heading: str) -> dict[str, str]:
    """Return the first and second columns of the first table after `heading`."""
    table = re.search(r"^\|.*?(?=\n[^|]|\Z)", PAGE.partition(heading)[2], re.MULTILINE | re.DOTALL)
    assert table is not None
    cells = [line.strip("|").split("|") for line in table[0].strip().splitlines()][2:]
    return {first.strip(): second.strip() for first, second, *_ in cells}


async def test_a_question_is_answered() -> None:
    async with plain_server(States()) as url:
        order = program(0, url)["order"]
        assert await order(lambda text: "seven") == "COMPLETED: after A table for tonight"


async def test_a_session_is_restored_from_its_database_row() -> None:
    async with plain_server(States()) as url:
        service = program(1, url)
        row = await service["ask"]("INPUT_REQUIRED")

        assert await service["answer"](row, "seven") == "after seven"


@pytest.mark.parametrize(
    ("message", "printed", "outcome"),
    [
        ("COMPLETED", "COMPLETED it is", "done"),
        ("INPUT_REQUIRED", "", "INPUT_REQUIRED it is"),
        ("FAILED", "", "no answer: FAILED it is"),
    ],
)
async def test_a_text_is_printed_as_it_arrives(
    message: str, printed: str, outcome: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with plain_server(States()) as url, client.RemoteAgent(url) as agent:
        assert await program(2, url)["tell"](agent.session(), message) == outcome
    assert capsys.readouterr().out == printed


@pytest.mark.parametrize(
    ("schema", "entered", "expected"),
    [
        (None, "tea", "tea"),
        ({"type": "boolean"}, "yes", True),
        ({"enum": ["tea", "milk"]}, "milk", "milk"),
        ({"properties": {"cups": {"type": "integer"}}}, "2", {"cups": 2}),
    ],
)
async def test_a_question_with_a_schema_is_answered(schema: Any, entered: str, expected: Any) -> None:
    class FakeSession:
        async def send(self, content: Any) -> Result:
            if isinstance(content, str):
                parts = [{"text": "What?"}, {"data": schema, "mediaType": "application/schema+json"}]
                message = {"messageId": "q", "role": "ROLE_AGENT", "parts": parts if schema else parts[:1]}
                return Result.of({"id": "t", "status": {"state": "TASK_STATE_INPUT_REQUIRED", "message": message}})
            [part] = content.parts
            answers.append(MessageToDict(part).get("data", part.text))
            return Result.of({"id": "t", "status": {"state": "TASK_STATE_COMPLETED"}})

    answers: list[Any] = []
    code = compile(PROGRAMS[3], "client.md", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    await eval(code, {"session": FakeSession(), "input": lambda prompt: entered, "print": lambda text: None})

    assert answers == [expected]


def test_the_states_are_those_of_the_code() -> None:
    reasons = columns("<!-- states")
    unknown_reason = reasons.pop("of a later version of A2A")

    assert reasons == {
        state_name(state): f'`"{reason}"`' if reason else "`None`" for state, reason in STOP_REASONS.items()
    }
    assert unknown_reason == "`None`"


def test_the_exit_codes_are_those_of_the_command() -> None:
    meanings = {int(code): meaning for code, meaning in columns("<!-- exit codes").items()}

    assert {code: meaning.split(",")[0] for code, meaning in meanings.items() if code not in (2, INTERRUPTED)} == {
        code: state_name(state) for state, code in EXIT_CODES.items()
    }
    assert {2, INTERRUPTED} < set(meanings)


def test_the_errors_are_those_of_the_code() -> None:
    classes = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.RemoteError) and value is not errors.RemoteError
    }

    assert {name.strip("`") for name in columns("## Errors")} == classes
    assert classes < set(client.__all__)


def test_its_numbers_are_the_codes() -> None:
    text = " ".join(PAGE.split())
    assert f"`reconnect_timeout` seconds (default: {remote_agent.RECONNECT_TIMEOUT:.0f})" in text
    assert f"`Cache-Control` (default: {card_cache.MAX_AGE:.0f} seconds)" in text
    assert f"after {turn_stream.MIN_BACKOFF} s, then at growing intervals up to {turn_stream.MAX_BACKOFF:.0f} s" in text
    assert "the newest twenty tasks of the context" in text
    assert turn_stream.MAX_TASKS_SEARCHED == 20


def test_the_other_libraries_are_those_of_the_tests() -> None:
    table = PAGE.partition("<!-- peers")[2].partition("Known limitations")[0]
    documented_versions = set(re.findall(r"^\| (\S+) \| (\S+) \|", table, re.MULTILINE)) - {
        ("library", "version"),
        ("---", "---"),
    }
    requirements = "\n".join(path.read_text() for path in PEERS.glob("sdk-*.txt"))
    npm = json.loads((PEERS / "package.json").read_text())["dependencies"]

    assert documented_versions == {
        *re.findall(r"^([\w-]+)(?:\[[\w,-]+\])?==(\S+)$", requirements, re.MULTILINE),
        *(tuple(name.removeprefix("npm:").rsplit("@", 1)) for name in npm.values() if name.startswith("npm:")),
    }
