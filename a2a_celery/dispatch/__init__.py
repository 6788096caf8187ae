"""The hand-over to Celery: what a run is called there, and how it is published and revoked."""

from .agent_queues import queue_of
from .broker_guards import guard_workers
from .calls import BadCall, CallSignature
from .canvases import Canvas
from .fleets import fleet_of
from .options import Call, RunOptions
from .publisher import HIDDEN, RUN_HEADER, Publisher, entry_name
from .queues import BrokerQueues
from .serializing import require_readable

__all__ = [
    "HIDDEN",
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
    "queue_of",
    "require_readable",
]
