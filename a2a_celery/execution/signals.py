"""What Celery tells by signals alone: a message for an agent that the worker doesn't have, that it is ready, and that a
run's task is over.

Receivers are functions of this module, connected once and strongly: Celery calls no closure that was connected weakly,
and swallows what a receiver raises. Everything else about a run comes through `request`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from celery import Celery, states
from celery.signals import task_postrun, task_unknown, worker_ready
from celery.utils.functional import noop

from ..config import Settings
from ..dispatch import fleet_of
from ..lifecycle import Refused
from ..lifecycle.outcomes import AGENT_UNKNOWN
from ..store.runs import RunRef
from .ending import RunEnder
from .handing_back import HandingBack
from .stopping import Stopping

logger = logging.getLogger(__name__)

_enders: WeakKeyDictionary[Celery, tuple[RunEnder, HandingBack]] = WeakKeyDictionary()
"""Of each app that has an A2A: a signal is the process's, its sender's app says whose it is."""

_stoppings: WeakKeyDictionary[Celery, Callable[[Any], Stopping]] = WeakKeyDictionary()
"""How a worker of such an app stops, made from its consumer."""


def connect(app: Celery, ender: RunEnder, settings: Callable[[], Settings], handing_back: HandingBack) -> None:
    """Makes what `app`'s workers learn about runs end these with `ender`, and workers that stop give them up with
    `handing_back`. Once per app and process is enough."""
    _enders[app] = ender, handing_back
    _stoppings[app] = lambda consumer: Stopping(consumer, settings, handing_back)
    worker_ready.connect(worker_is_ready, weak=False, dispatch_uid="a2a_celery.worker_is_ready")
    task_unknown.connect(agent_unknown, weak=False, dispatch_uid="a2a_celery.agent_unknown")
    task_postrun.connect(release_traceback, weak=False, dispatch_uid="a2a_celery.release_traceback")


def agent_unknown(sender: Any = None, name: str = "", id: str = "", message: Any = None, **_: Any) -> None:
    """A worker got a run of an agent that its app doesn't have; the message is gone."""
    try:
        ender, handing_back = _enders.get(sender.app, (None, None))
        # what is no run of an A2A task has an id that names none
        if ender is None or handing_back is None:
            return
        if RunRef.of(id) is not None and fleet_of(message.headers) != handing_back.fleet:
            handing_back.return_message(message, noop)
        elif _is_ours(message):
            ender.end(id, Refused(AGENT_UNKNOWN), worker_pid=None)
    except Exception:
        logger.exception("a message for an unknown agent was not handled")


def release_traceback(sender: Any = None, retval: Any = None, state: str | None = None, **_: Any) -> None:
    """Drop the traceback of the exception that ended a run.

    Celery's tracer keeps the exception in a local of the frame that the traceback refers to. The cycle holds Celery's
    copy of the traceback too, 150 to 300 KiB, until the oldest generation of objects is collected.
    """
    if state != states.SUCCESS and isinstance(retval, BaseException) and hasattr(sender, "ender"):
        retval.__traceback__ = None


def _is_ours(message: Any) -> bool:
    """Whether a worker would have taken it, had it known the agent: not if it has to be signed, and is not."""
    try:
        message.decode()
    except Exception as e:
        logger.warning("a message for an unknown agent is refused: %s", type(e).__name__)
        return False
    return True


def worker_is_ready(sender: Any = None, **_: Any) -> None:
    """A worker begins to take messages."""
    try:
        stopping = _stoppings.get(sender.app)
        if stopping is not None:
            stopping(sender).precede_celery()
    except Exception:
        logger.exception("this worker will not hand back its runs when it stops")
