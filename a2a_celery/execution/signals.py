"""What Celery tells by signals alone: a message for an agent that the worker doesn't have.

Receivers are functions of this module, connected once and strongly: Celery calls no closure that was connected weakly,
and swallows what a receiver raises. Everything else about a run comes through `request`.
"""

from __future__ import annotations

import logging
from typing import Any
from weakref import WeakKeyDictionary

from celery import Celery
from celery.signals import task_unknown

from ..dispatch import entry_name
from ..lifecycle import Refused
from ..lifecycle.outcomes import AGENT_UNKNOWN
from .ending import RunEnder

logger = logging.getLogger(__name__)

_enders: WeakKeyDictionary[Celery, RunEnder] = WeakKeyDictionary()
"""Of each app that has an A2A: a signal is the process's, its sender's app says whose it is."""


def connect(app: Celery, ender: RunEnder) -> None:
    """Makes what `app`'s workers learn about runs end these with `ender`. Once per app and process is enough."""
    _enders[app] = ender
    task_unknown.connect(agent_unknown, weak=False, dispatch_uid="a2a_celery.agent_unknown")


def agent_unknown(sender: Any = None, name: str = "", id: str = "", **_: Any) -> None:
    """A worker got a run of an agent that its app doesn't have; the message is gone."""
    try:
        ender = _enders.get(sender.app)
        if ender is not None and name.startswith(entry_name("")):
            ender.end(id, Refused(AGENT_UNKNOWN), worker_pid=None)
    except Exception:
        logger.exception("a message for an unknown agent was not handled")
