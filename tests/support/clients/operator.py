"""Runner of operator commands on a fleet. The commands run in the test process, because a new process takes longer."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from celery import Celery
from click.testing import CliRunner, Result

from a2a_celery import A2A
from a2a_celery.cli.commands import a2a as commands
from tests.support.agents.basic import a2a as fleets
from tests.support.processes.fleet import Fleet


class Operator:
    """Runner of operator commands on a fleet."""

    def __init__(self, fleet: Fleet, **conf: Any) -> None:
        self.celery = Celery("tests", broker=fleet.broker_url, set_as_current=False)
        self.celery.conf.update({"task_default_queue": fleet.queue, "a2a_store_url": fleet.redis.store_url} | conf)
        self.a2a = A2A(self.celery)
        self.a2a.agents.update(fleets.agents)

    def __call__(self, *arguments: str, code: int = 0) -> Result:
        """Run ``celery -A … a2a <arguments>`` and require the exit code `code`."""
        result = CliRunner().invoke(commands, arguments, obj=SimpleNamespace(app=self.celery))
        assert result.exit_code == code, result.output
        return result

    def rows(self, *arguments: str, code: int = 0) -> list[dict[str, Any]]:
        """Run a command with ``--json`` and return the parsed lines."""
        return [json.loads(line) for line in self(*arguments, "--json", code=code).stdout.splitlines()]
