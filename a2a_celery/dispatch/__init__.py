"""Dispatch to Celery: names of Celery tasks and queues, publishing of runs, and revocation."""

from .calls import BadCall, CallSignature
from .canvases import Canvas, ignored_results, unreadable_results
from .connection import guard_workers
from .message_preparer import PreparedMessage
from .options import EPOCH, MICROSECOND, Call, RunOptions, require_readable
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
from .worker_reports import worker_reports

__all__ = [
    "EPOCH",
    "HIDDEN",
    "MICROSECOND",
    "RUN_HEADER",
    "BadCall",
    "BrokerQueues",
    "Call",
    "CallSignature",
    "Canvas",
    "PreparedMessage",
    "Publisher",
    "RunOptions",
    "entry_name",
    "fleet_of",
    "guard_workers",
    "ignored_results",
    "queue_of",
    "require_readable",
    "unreadable_results",
    "version_queue",
    "version_queue_name",
    "version_queues",
    "worker_reports",
]
