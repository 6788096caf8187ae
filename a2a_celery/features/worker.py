"""Features in workers: what the runs of an agent open."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from ..execution.agents.incoming import open_messages
from ..execution.agents.session import open_session
from ..execution.events.queue import RunEventQueue
from ..execution.open_run import OpenRun
from .feature import RunFeature
from .steps.journal import RunJournal

RUN_FEATURES: Mapping[tuple[str, Any], Callable[[OpenRun, RunEventQueue], Awaitable[RunFeature]]] = {
    ("session", True): open_session,
    ("on_message", "steer"): open_messages,
}
"""Functions that open the features of a run, by the option of the agent and its value that turn the feature on.

A function is called before the agent, with the complete claim, in the asyncio task of the agent. Its exceptions are
treated like exceptions of the agent."""

REPLAY_FEATURES: Sequence[type[RunFeature]] = (RunJournal,)
"""Features that replay the journal of a turn. If an earlier run has recorded entries, they are opened before the
features of `RUN_FEATURES`."""
