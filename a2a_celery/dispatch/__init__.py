"""Dispatch to Celery: names of Celery tasks and queues, publishing of runs, and revocation."""

from .connection import guard_workers
from .options import Call, RunOptions, require_readable
from .plain_tasks.arguments import BadCall, CallSignature
from .plain_tasks.canvases import Canvas, ignored_results
from .plain_tasks.result_checks import is_polled, report_unreadable_results, results_problem, unreadable_backend
from .publisher import HIDDEN, RUN_HEADER, Publisher
from .queues import (
    BrokerQueues,
    entry_name,
    fleet_of,
    queue_of,
    version_queue,
    version_queue_name,
    version_queues,
)
from .worker_reports import Consumer, RunFinder, RunReports, ask_workers, worker_reports

__all__ = [
    "HIDDEN",
    "RUN_HEADER",
    "BadCall",
    "BrokerQueues",
    "Call",
    "CallSignature",
    "Canvas",
    "Consumer",
    "Publisher",
    "RunFinder",
    "RunOptions",
    "RunReports",
    "ask_workers",
    "entry_name",
    "fleet_of",
    "guard_workers",
    "ignored_results",
    "is_polled",
    "queue_of",
    "report_unreadable_results",
    "require_readable",
    "results_problem",
    "unreadable_backend",
    "version_queue",
    "version_queue_name",
    "version_queues",
    "worker_reports",
]
