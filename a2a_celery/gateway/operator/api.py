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
from ...features import OPERATOR_ROUTES
from ...features.feature import OperatorRoute
from ...lifecycle.references import Scope
from ...operations.errors import invalid, not_found
from ...operations.service import TaskService
from ...settings import Settings
from ...store import AsyncStore, Keys
from ...store.admin.samples import HOUR, SERIES, read_samples
from ...store.admin.scan import scan_list
from ...store.admin.start_check import announced_workers, watchers
from ...store.admin.usage import read_memory
from ...store.webhooks.deliveries import read_delivery, replay_delivery, scan_deliveries
from ...telemetry.names import Action
from ..auth.refusal_log import RefusalLog
from ..auth.schemes import Identity
from ..bindings.endpoints import CALLERS
from ..metrics import Metrics
from ..middleware.json_endpoint import Report, json_endpoint
from ..operations.limits import OwnerLimits
from . import audit
from .reports import announced_json, delivery_json, history_json, overview_json, task_json, worker_json
from .role import OperatorRole
from .stored_tasks import newest_failures, stored_tasks, tasks_of_all
from .task_actions import TaskActions
from .task_texts import MAX_TASKS, add_texts
from .timeline import timeline
from .workers import FleetWorkers

FAILED_PHASE = "failed"
ALL_PHASE = "all"
"""Value of the query parameter ``phase`` for open and ended tasks of all owners."""
ANY_PHASE = "any"
"""Value of the query parameter ``phase`` for open and ended tasks of one owner or of a feature's filter."""

PATH = "/operator/v1"
"""Path prefix. The second segment distinguishes the paths from those of a tenant named ``operator``."""

MAX_BODY = 1 << 17
"""Maximum size of a request body in bytes. The largest body is a signal with a payload of 64 KiB."""


class OperatorApi:
    """Operator's API of a gateway that serves `agents`."""

    def __init__(
        self,
        app: Celery,
        agents: Mapping[str, Agent],
        settings: Settings,
        store: AsyncStore,
        keys: Keys,
        limits: OwnerLimits,
        refusal_log: RefusalLog,
        service: TaskService,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.role = OperatorRole(settings.operators)
        self._app = app
        self._agents = agents
        self._store = store
        self._keys = keys
        self._limits = limits
        self._refusal_log = refusal_log
        self._metrics: Metrics = limits.metrics
        self._task_actions = TaskActions(service)
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
        operations: list[tuple[str, str, str, Report]] = [
            ("GET", "/overview", "OperatorOverview", self.overview),
            ("GET", "/history", "OperatorHistory", self.history),
            ("GET", "/tasks", "OperatorListTasks", self.tasks),
            ("GET", "/tasks/{id}", "OperatorGetTask", self.task),
            ("POST", "/tasks:cancel", "OperatorCancelTasks", self.cancel_all),
            ("POST", "/tasks/{id}:cancel", "OperatorCancelTask", self.cancel),
            ("POST", "/tasks/{id}:signal", "OperatorSignal", self.signal),
            ("GET", "/dead-letters", "OperatorListDeadLetters", self.dead_letters),
            ("POST", "/dead-letters:requeue", "OperatorRequeueAll", self.requeue_page),
            ("POST", "/dead-letters/{id}:requeue", "OperatorRequeue", self.requeue),
            ("GET", "/webhooks", "OperatorListWebhooks", self.webhooks),
            ("POST", "/webhooks/{id}/{config:path}:replay", "OperatorReplay", self.replay),
            ("GET", "/workers", "OperatorListWorkers", self.workers),
            ("POST", "/workers/{name:path}:drain", "OperatorDrain", self.drain),
            ("POST", "/workers/{name:path}:undrain", "OperatorUndrain", self.undrain),
            *(("GET", route.path, route.name, self._report_of(route)) for route in OPERATOR_ROUTES),
        ]
        return [
            Route(PATH + path, self._endpoint(name, report), methods=[verb]) for verb, path, name, report in operations
        ]

    def _endpoint(self, name: str, report: Report) -> Callable[[Request], Awaitable[Response]]:
        async def report_to_operator(request: Request, owner: str) -> dict[str, Any]:
            self.role.require(owner)
            return await report(request, owner)

        return json_endpoint(self._limits, self._refusal_log, name, report_to_operator)

    def _report_of(self, route: OperatorRoute) -> Report:
        return lambda _request, _operator: route.report(self._app, self._store, self._keys)

    async def overview(self, _request: Request, _operator: str) -> dict[str, Any]:
        """Return the metrics of the fleet and the memory usage of the store."""
        fleet_metrics, posts = await self._metrics.store_metrics()
        return overview_json(fleet_metrics, posts, await self._store.run(read_memory()), self._agents)

    async def history(self, request: Request, _operator: str) -> dict[str, Any]:
        """Return the recorded samples of the last hour, or of the last day with ``range=day``."""
        name = request.query_params.get("range", HOUR.name)
        series = next((series for series in SERIES if series.name == name), None)
        if series is None:
            raise invalid("range", f"Send one of {', '.join(series.name for series in SERIES)}.")
        samples = await self._store.run(read_samples(self._keys, series))
        return history_json(series, samples)

    async def tasks(self, request: Request, operator: str) -> dict[str, Any]:
        """Return a page of the tasks of all owners, of those in one phase, of failed tasks, or of all tasks of one
        owner or of a feature's filter. The operator's own tasks have texts."""
        page = await self._task_page(request)
        await add_texts(self._store, self._keys, page["tasks"], _ownership(request, operator))
        return page

    async def _task_page(self, request: Request) -> dict[str, Any]:
        phase = request.query_params.get("phase", "running")
        if phase == ALL_PHASE:
            return await tasks_of_all(self._store, self._keys, request.query_params)
        if phase == ANY_PHASE:
            return await stored_tasks(self._store, self._keys, self._agents, request.query_params)
        if phase == FAILED_PHASE:
            return await newest_failures(self._store, self._keys)
        if phase not in self._lists:
            raise invalid("phase", f"Send one of {', '.join([*self._lists, FAILED_PHASE, ALL_PHASE, ANY_PHASE])}.")
        return await self._page(self._lists[phase], request)

    async def task(self, request: Request, operator: str) -> dict[str, Any]:
        """Return the timeline of a task, which may belong to any owner."""
        owns = _ownership(request, operator)
        return await timeline(self._store, self._keys, request.path_params["id"], owns)

    async def cancel(self, request: Request, operator: str) -> dict[str, Any]:
        """Cancel the task in the path of `request`, which may belong to any owner."""
        result = await self._task_actions.cancel(request.path_params["id"], operator)
        if result["result"] == "missing":
            raise not_found(result["task"])
        return result

    async def cancel_all(self, request: Request, operator: str) -> dict[str, Any]:
        """Cancel the tasks in the body of `request`, and return a result for each task."""
        return await self._task_actions.cancel_all(await _body(request), operator)

    async def signal(self, request: Request, operator: str) -> dict[str, Any]:
        """Send the signal in the body of `request` to the task in its path."""
        return await self._task_actions.signal(request.path_params["id"], await _body(request), operator)

    async def dead_letters(self, request: Request, operator: str) -> dict[str, Any]:
        """Return a page of the dead letters of all owners. The operator's own tasks have texts."""
        page = await self._page(self._keys.dead_letters, request)
        await add_texts(self._store, self._keys, page["tasks"], _ownership(request, operator))
        return page

    async def requeue(self, request: Request, operator: str) -> dict[str, Any]:
        """Requeue the dead letter in the path of `request`."""
        return await self._task_actions.requeue(request.path_params["id"], operator)

    async def requeue_page(self, request: Request, operator: str) -> dict[str, Any]:
        """Requeue a page of the dead letters of all owners."""
        return await self._task_actions.requeue_page(_cursor(request), operator)

    async def webhooks(self, request: Request, _operator: str) -> dict[str, Any]:
        """Return a page of the webhooks with pending deliveries or, with ``state=dead``, of the webhooks whose delivery
        was given up."""
        is_dead = request.query_params.get("state") == "dead"
        page = await self._store.run(scan_deliveries(self._keys, dead=is_dead, cursor=_cursor(request)))
        return {"webhooks": [delivery_json(delivery) for delivery in page.deliveries], "next": page.cursor}

    async def replay(self, request: Request, operator: str) -> dict[str, Any]:
        """Make the failed events of a webhook due, so that a watcher posts them again."""
        task_id, config_id = request.path_params["id"], request.path_params["config"]
        outcome = await self._store.run(replay_delivery(self._keys, task_id, config_id))
        delivery = await self._store.run(read_delivery(self._keys, task_id, config_id))
        fields = {"task": task_id, "webhook": config_id}
        audit.record(Action.DELIVERY_REPLAYED, operator, f"task {task_id}", outcome, **fields)
        if outcome == "missing" or delivery is None:
            raise not_found(task_id)
        return delivery_json(delivery) | {"replayed": outcome == "replayed"}

    async def workers(self, _request: Request, _operator: str) -> dict[str, Any]:
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

    async def drain(self, request: Request, operator: str) -> dict[str, Any]:
        """Take the worker in the path of `request` out of service."""
        return await self._workers.drain(request.path_params["name"], operator)

    async def undrain(self, request: Request, operator: str) -> dict[str, Any]:
        """Return the worker in the path of `request` to service."""
        return await self._workers.undrain(request.path_params["name"], operator)

    async def _page(self, name: str, request: Request) -> dict[str, Any]:
        page = await self._store.run(scan_list(self._keys, name, cursor=_cursor(request), size=MAX_TASKS))
        return {"tasks": [task_json(task) for task in page.tasks], "next": page.cursor}


async def _body(request: Request) -> dict[str, Any]:
    """Return the body of `request`, or {} if it is empty. `guard_rest` has checked that the body is a JSON object."""
    return await request.json() if await request.body() else {}


def _ownership(request: Request, operator: str) -> Callable[[Scope], bool]:
    """Return a function that returns True for the scopes of the operator's own tasks."""
    user = CALLERS.build_user(request)
    return lambda scope: scope.owner == operator and (not isinstance(user, Identity) or user.may_use(scope.tenant))


def _cursor(request: Request) -> int:
    """Return the cursor in the query of `request`, or 0 for the first page. The cursor is `next` of the previous page.

    Raises:
        InvalidParamsError: The cursor is not a number below 2**64, the limit of Redis.
    """
    text = request.query_params.get("cursor", "0")
    if not (text.isascii() and text.isdecimal() and len(text) <= 20 and int(text) < 2**64):
        raise invalid("cursor", "Send the value of `next` of the previous page.")
    return int(text)
