"""The worker side that is installed on a Celery app. Receivers of Celery signals find it by the app of the sender."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from celery import Celery

from ..agents import Agent
from ..hooks import Hooks
from ..settings import Settings
from .process.run_ender import RunEnder
from .process.shutdown_requeuer import ShutdownRequeuer

Receivers = tuple[tuple[Any, Callable[..., None]], ...]
"""Celery signals, each with a receiver: a function of a module, not a closure."""


@dataclass(frozen=True)
class Installed:
    """Worker side of an app, as receivers of signals use it."""

    settings: Callable[[], Settings]
    agents: Mapping[str, Agent]
    ender: RunEnder
    requeuer: ShutdownRequeuer
    close: Callable[[], None]
    """Closes the state of this process."""
    hooks: Hooks = field(default_factory=Hooks)


_installed: WeakKeyDictionary[Celery, Installed] = WeakKeyDictionary()


def install(app: Celery, installed: Installed, *receivers: Receivers) -> None:
    """Install on `app`, and connect the receivers, which every app of the process shares.

    They are connected strongly: Celery calls no closure that was connected weakly.
    """
    _installed[app] = installed
    for signal, receiver in (pair for pairs in receivers for pair in pairs):
        signal.connect(receiver, weak=False, dispatch_uid=f"{receiver.__module__}.{receiver.__qualname__}")


def installed_on(app: Celery) -> Installed | None:
    """Return what is installed on `app`, or None if it has no A2A whose worker side was loaded."""
    return _installed.get(app)
