"""Routes of the operator's API. Every request is authenticated, counts against the rate limit of its owner, and
requires the operator's role.

The API uses the store operations of the ``celery a2a`` operator commands. Every response is one bounded page.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from celery import Celery
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ...agents import Agent
from ...clock import SYSTEM_CLOCK, Clock
from ...dispatch import queue_of
from ...features.feature import OperatorRoute
from ...features.gateway import OPERATOR_ROUTES
from ...operations.errors import invalid
from ...operations.service import TaskService
from ...settings import Settings
from ...store import AsyncStore, Keys
from ...store.admin.samples import HOUR, SERIES, read_samples
from ...store.admin.start_check import announced_workers, watchers
from ...store.admin.usage import read_memory
from ..auth.refusal_log import RefusalLog
from ..gate import Gate
from ..metrics import Metrics
from ..middleware.json_endpoint import json_endpoint
from .operator_request import OperatorRequest
from .reports import announced_json, history_json, overview_json, worker_json
from .role import OperatorRole
from .stored_tasks import newest_failures, page_of_list, stored_tasks, tasks_of_all
from .task_actions import cancel_task, cancel_tasks, signal_task
from .task_texts import add_texts
from .timeline import timeline
from .workers import FleetWorkers

FAILED_PHASE = "failed"
ALL_PHASE = "all"
"""Value of the query parameter ``phase`` for open and ended tasks of all owners."""
ANY_PHASE = "any"
"""Value of the query parameter ``phase`` for open and ended tasks of one owner or of a feature's filter."""

PATH = "/operator/v1"
"""Path prefix. The second segment distinguishes the paths from those of a tenant named ``operator``."""


class OperatorApi:
    """Operator's API of a gateway that serves `agents`."""

    def __init__(
        self,
        app: Celery,
        agents: Mapping[str, Agent],
        settings: Settings,
        store: AsyncStore,
        keys: Keys,
        gate: Gate,
        refusal_log: RefusalLog,
        service: TaskService,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.role = OperatorRole(settings.operators)
        self._app = app
        self._service = service
        self._agents = agents
        self._store = store
        self._keys = keys
        self._gate = gate
        self._refusal_log = refusal_log
        self._metrics: Metrics = gate.metrics
        self._workers = FleetWorkers(app, settings.key_prefix, clock)
        self._lists = {
            "queued": keys.dispatch,
            "blocked": keys.blocked,
            "running": keys.leases,
            "delegated": keys.canvases,
            "suspended": keys.suspended,
            "paused": keys.pauses,
        }

    def routes(self) -> list[Route]:
        """Return the routes. A path with a verb comes before a more general path that would also match."""
        operations = [
            OperatorRoute("GET", "/overview", "OperatorOverview", self.overview),
            OperatorRoute("GET", "/history", "OperatorHistory", self.history),
            OperatorRoute("GET", "/tasks", "OperatorListTasks", self.tasks),
            OperatorRoute("GET", "/tasks/{id}", "OperatorGetTask", self.task),
            OperatorRoute("POST", "/tasks:cancel", "OperatorCancelTasks", cancel_tasks),
            OperatorRoute("POST", "/tasks/{id}:cancel", "OperatorCancelTask", cancel_task),
            OperatorRoute("POST", "/tasks/{id}:signal", "OperatorSignal", signal_task),
            OperatorRoute("GET", "/workers", "OperatorListWorkers", self.workers),
            OperatorRoute("POST", "/workers/{name:path}:drain", "OperatorDrain", self._workers.drain),
            OperatorRoute("POST", "/workers/{name:path}:undrain", "OperatorUndrain", self._workers.undrain),
            *OPERATOR_ROUTES,
        ]
        return [Route(PATH + route.path, self._endpoint(route), methods=[route.method]) for route in operations]

    def _endpoint(self, route: OperatorRoute) -> Callable[[Request], Awaitable[Response]]:
        async def respond(request: Request, operator: str) -> dict[str, Any]:
            self.role.require(operator)
            return await route.respond(OperatorRequest(request, operator, self._app, self._service))

        return json_endpoint(self._gate, self._refusal_log, route.name, respond)

    async def overview(self, request: OperatorRequest) -> dict[str, Any]:
        """Return the metrics of the fleet and the memory usage of the store."""
        fleet_metrics, posts = await self._metrics.store_metrics()
        return overview_json(fleet_metrics, posts, await self._store.run(read_memory()), self._agents)

    async def history(self, request: OperatorRequest) -> dict[str, Any]:
        """Return the recorded samples of the last hour, or of the last day with ``range=day``."""
        name = request.http.query_params.get("range", HOUR.name)
        series = next((series for series in SERIES if series.name == name), None)
        if series is None:
            raise invalid("range", f"Send one of {', '.join(series.name for series in SERIES)}.")
        samples = await self._store.run(read_samples(self._keys, series))
        return history_json(series, samples)

    async def tasks(self, request: OperatorRequest) -> dict[str, Any]:
        """Return a page of the tasks of all owners, of those in one phase, of failed tasks, or of all tasks of one
        owner or of a feature's filter. The operator's own tasks have texts."""
        page = await self._task_page(request)
        await add_texts(self._store, self._keys, page["tasks"], request.owns)
        return page

    async def _task_page(self, request: OperatorRequest) -> dict[str, Any]:
        phase = request.http.query_params.get("phase", "running")
        if phase == ALL_PHASE:
            return await tasks_of_all(self._store, self._keys, request.http.query_params)
        if phase == ANY_PHASE:
            return await stored_tasks(self._store, self._keys, self._agents, request.http.query_params)
        if phase == FAILED_PHASE:
            return await newest_failures(self._store, self._keys)
        if phase not in self._lists:
            raise invalid("phase", f"Send one of {', '.join([*self._lists, FAILED_PHASE, ALL_PHASE, ANY_PHASE])}.")
        return await page_of_list(self._store, self._keys, self._lists[phase], request.cursor())

    async def task(self, request: OperatorRequest) -> dict[str, Any]:
        """Return the timeline of a task, which may belong to any owner."""
        return await timeline(self._store, self._keys, request.task_id, request.owns)

    async def workers(self, request: OperatorRequest) -> dict[str, Any]:
        """Return the workers, the watchers, and the queue of each agent."""
        announcements = [json.loads(text) for text in await self._store.run(announced_workers(self._keys))]
        watching = [json.loads(text)["watcher"] for text in await self._store.run(watchers(self._keys))]
        reports = await self._workers.reports()
        return {
            "workers": [worker_json(name, report) for name, report in sorted(reports.items())]
            + [announced_json(announcement) for announcement in announcements],
            "watchers": sorted(watching),
            "queues": {name: queue_of(self._app, agent) for name, agent in self._agents.items()},
        }
