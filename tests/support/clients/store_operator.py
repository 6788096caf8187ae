"""Runner of operator commands on a store without a fleet, and parsers of their JSON output."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from celery import Celery
from click.testing import CliRunner, Result

from a2a_celery import A2A, Turn
from a2a_celery.cli.commands import a2a as commands
from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis

Command = Callable[..., Result]


def operator_command(redis_server: EmbeddedRedis) -> Command:
    """Return a function that runs a command as an operator of a deployment with two agents."""
    app = Celery("tests", broker=redis_server.broker_url, set_as_current=False)
    app.conf.update(a2a_store_url=redis_server.store_url, a2a_cancel_grace=0.1, a2a_key_prefix="test")
    a2a = A2A(app)

    async def agent(turn: Turn) -> str:
        return turn.text

    for name in ("agent", "other"):
        a2a.agent(name)(agent)

    def run(*arguments: str, code: int = 0, **options: Any) -> Result:
        result = CliRunner().invoke(commands, arguments, obj=SimpleNamespace(app=app), **options)
        assert result.exit_code == code, result.output
        return result

    return run


def json_lines(result: Result) -> list[dict[str, Any]]:
    """Parse the JSON output of a command."""
    return [json.loads(line) for line in result.stdout.splitlines()]


def ids(result: Result) -> set[str]:
    return {entry["task"] for entry in json_lines(result)}
