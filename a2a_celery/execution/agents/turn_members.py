"""Members of `Turn` and `BlockingTurn` that the methods of features use, declared for type checkers."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from ..open_run import OpenRun
    from .running_agent import RunningAgent
    from .turn import Turn

T = TypeVar("T")


class TurnMembers:
    """Base class of the methods of `Turn` that belong to features."""

    if TYPE_CHECKING:
        _agent: RunningAgent
        _run: OpenRun

        def stop_if_asking(self) -> None: ...


class BlockingTurnMembers:
    """Base class of the methods of `BlockingTurn` that belong to features."""

    if TYPE_CHECKING:
        _turn: Turn

        def _wait_for(self, method: Callable[[], Coroutine[Any, Any, T]]) -> T: ...
