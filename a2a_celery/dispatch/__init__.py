"""The hand-over to Celery: what a run is called there, and how it is published and revoked."""

from .broker_guards import guard_workers
from .calls import BadCall, CallSignature
from .canvases import Canvas, ignored_results, unreadable_results
from .fleets import fleet_of
from .options import EPOCH, MICROSECOND, Call, RunOptions
from .publisher import HIDDEN, RUN_HEADER, Publisher
from .queues import BrokerQueues, entry_name, queue_of
from .serializing import require_readable

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
    "Publisher",
    "RunOptions",
    "entry_name",
    "fleet_of",
    "guard_workers",
    "ignored_results",
    "queue_of",
    "require_readable",
    "unreadable_results",
]
