"""Routes of the operator's API. Every request is authenticated, counts against the rate limit of its owner, and
requires the operator's role.

The API uses the store operations of the ``celery a2a`` operator commands. Every response is one bounded page.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from a2a.server.context import ServerCallContext
from celery import Celery
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ...acceptance.errors import LimitExceededError, invalid, not_found
from ...agents import Agent
from ...clock import SYSTEM_CLOCK, Clock
from ...dispatch import queue_of, worker_reports
from ...settings import Settings
from ...store import AsyncStore, Keys
from ...store.admin.scan import scan_list
from ...store.admin.start_check import announced_workers, watchers
from ...store.admin.usage import read_memory
from ...store.webhooks.deliveries import read_delivery, replay_delivery, scan_deliveries
from ...telemetry.logs import about
from ...telemetry.names import Action
from ..bindings.endpoints import CALLERS, rest_error
from ..health import SingleCall
from ..metrics import Metrics
from ..middleware.operation import DISCONNECTED, OK
from ..operations.limits import OwnerLimits
from ..operations.send_message import BackgroundPublisher
from ..protocol_errors import RETRY_SECONDS, ServiceUnavailableError, record_limit_error, to_a2a
from .reports import announced_json, delivery_json, overview_json, task_json, worker_json
from .requeue import OperatorRequeuer
from .role import OperatorRole
from .schedules import schedules
from .stored_tasks import newest_failures, stored_tasks
from .timeline import timeline

logger = logging.getLogger(__name__)

FAILED_PHASE = "failed"
ANY_PHASE = "any"
"""Value of the query parameter ``phase`` for open and ended tasks."""

PATH = "/operator/v1"
"""Path prefix. The second segment distinguishes the paths from those of a tenant named ``operator``."""

MAX_BODY = 1024
"""Maximum size of a request body in bytes. The API does not use the body."""

REPLY_TIMEOUT = 1.0
"""Seconds within which workers must report."""

BROKER_TIMEOUT = 5.0
"""Seconds that a broadcast may take in addition to `REPLY_TIMEOUT`. After this time, the broker is regarded as
unreachable."""

REPORTS_FRESH_FOR = 2.0
"""Seconds for which the workers' reports are reused, so that several open pages share one broadcast."""

NO_STORE = {"Cache-Control": "no-store"}

Report = Callable[[Request, str], Awaitable[dict[str, Any]]]
"""Handler of an operation. The parameters are the request and the operator's name. The result is the response body."""


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
        publisher: BackgroundPublisher,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.role = OperatorRole(settings.operators)
        self._app = app
        self._clock = clock
        self._agents = agents
        self._trace_url = settings.trace_url
        self._store = store
        self._keys = keys
        self._limits = limits
        self._metrics: Metrics = limits.metrics
        self._requeuer = OperatorRequeuer(agents, settings, store, keys, publisher)
        self._ask_workers = SingleCall(lambda: worker_reports(app, REPLY_TIMEOUT))
        self._reports: dict[str, Mapping[str, Any]] = {}
        self._reported_at = float("-inf")
        self._lock = asyncio.Lock()
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
            ("GET", "/tasks", "OperatorListTasks", self.tasks),
            ("GET", "/tasks/{id}", "OperatorGetTask", self.task),
            ("GET", "/dead-letters", "OperatorListDeadLetters", self.dead_letters),
            ("POST", "/dead-letters/{id}:requeue", "OperatorRequeue", self.requeue),
            ("GET", "/webhooks", "OperatorListWebhooks", self.webhooks),
            ("POST", "/webhooks/{id}/{config:path}:replay", "OperatorReplay", self.replay),
            ("GET", "/workers", "OperatorListWorkers", self.workers),
            ("GET", "/schedules", "OperatorListSchedules", self.schedules),
        ]
        return [
            Route(PATH + path, self._endpoint(name, report), methods=[verb]) for verb, path, name, report in operations
        ]

    def _endpoint(self, name: str, report: Report) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            outcome = OK
            try:
                user = CALLERS.build_user(request)
                await self._limits.count_request("", ServerCallContext(user=user))
                self.role.require(user.user_name)
                return JSONResponse(await report(request, user.user_name), headers=NO_STORE)
            except Exception as e:
                error = to_a2a(e)
                outcome = type(error).__name__
                if isinstance(error, LimitExceededError):
                    record_limit_error(request.scope.setdefault(RETRY_SECONDS, []), error)
                return rest_error(error)
            except BaseException:
                outcome = DISCONNECTED
                raise
            finally:
                self._metrics.count_request("", name, outcome)

        return endpoint

    async def overview(self, _request: Request, _operator: str) -> dict[str, Any]:
        """Return the metrics of the fleet and the memory usage of the store."""
        fleet_metrics, posts = await self._metrics.store_metrics()
        return overview_json(fleet_metrics, posts, await self._store.run(read_memory()), self._agents)

    async def tasks(self, request: Request, _operator: str) -> dict[str, Any]:
        """Return a page of the open tasks of all owners in one phase, of the failed tasks of all owners, or of all
        tasks of one owner or schedule."""
        phase = request.query_params.get("phase", "running")
        if phase == ANY_PHASE:
            return await stored_tasks(self._store, self._keys, self._agents, request.query_params)
        if phase == FAILED_PHASE:
            return await newest_failures(self._store, self._keys)
        if phase not in self._lists:
            raise invalid("phase", f"Send one of {', '.join([*self._lists, FAILED_PHASE, ANY_PHASE])}.")
        return await self._page(self._lists[phase], request)

    async def task(self, request: Request, _operator: str) -> dict[str, Any]:
        """Return the timeline of a task, which may belong to any owner."""
        return await timeline(self._store, self._keys, request.path_params["id"], self._trace_url)

    async def dead_letters(self, request: Request, _operator: str) -> dict[str, Any]:
        """Return a page of the dead letters of all owners."""
        return await self._page(self._keys.dead_letters, request)

    async def requeue(self, request: Request, operator: str) -> dict[str, Any]:
        """Requeue the dead letter in the path of `request`."""
        return await self._requeuer.requeue(request.path_params["id"], operator)

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
        if outcome == "missing" or delivery is None:
            raise not_found(task_id)
        if outcome == "replayed":
            fields = about(Action.DELIVERY_REPLAYED, task=task_id, webhook=config_id)
            logger.info("task %s: webhook replayed by the operator %r", task_id, operator, extra=fields)
        return delivery_json(delivery) | {"replayed": outcome == "replayed"}

    async def workers(self, _request: Request, _operator: str) -> dict[str, Any]:
        """Return the workers, the watchers, and the queue of each agent."""
        announcements = [json.loads(text) for text in await self._store.run(announced_workers(self._keys))]
        watching = [json.loads(text)["watcher"] for text in await self._store.run(watchers(self._keys))]
        reports = await self._worker_reports()
        return {
            "workers": [worker_json(name, report) for name, report in sorted(reports.items())]
            + [announced_json(announcement) for announcement in announcements],
            "watchers": sorted(watching),
            "queues": {name: queue_of(self._app, agent) for name, agent in self._agents.items()},
        }

    async def schedules(self, _request: Request, _operator: str) -> dict[str, Any]:
        """Return the app's schedules, each with its newest task and its skipped ticks."""
        return await schedules(self._app, self._store, self._keys)

    async def _worker_reports(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the workers' reports, up to `REPORTS_FRESH_FOR` seconds old. Concurrent requests share one broadcast.

        Raises:
            ServiceUnavailableError: The broker is unreachable.
        """
        async with self._lock:
            if self._clock.monotonic() - self._reported_at > REPORTS_FRESH_FOR:
                try:
                    self._reports = await self._ask_workers.result(REPLY_TIMEOUT + BROKER_TIMEOUT)
                except Exception as e:  # each transport has its own errors, whose texts may contain an address
                    logger.warning("could not query the workers: %s", type(e).__name__)
                    raise ServiceUnavailableError("The broker is unreachable: try again later") from None
                self._reported_at = self._clock.monotonic()
            return self._reports

    async def _page(self, name: str, request: Request) -> dict[str, Any]:
        page = await self._store.run(scan_list(self._keys, name, cursor=_cursor(request)))
        return {"tasks": [task_json(task) for task in page.tasks], "next": page.cursor}


def _cursor(request: Request) -> int:
    """Return the cursor in the query of `request`, or 0 for the first page. The cursor is `next` of the previous page.

    Raises:
        InvalidParamsError: The cursor is not a number below 2**64, the limit of Redis.
    """
    text = request.query_params.get("cursor", "0")
    if not (text.isascii() and text.isdecimal() and len(text) <= 20 and int(text) < 2**64):
        raise invalid("cursor", "Send the value of `next` of the previous page.")
    return int(text)
