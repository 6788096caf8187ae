"""Features of a run: which of them a run opens, and how they take part in its settlement."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from a2a.types import TaskState
from celery import Celery

from a2a_celery import A2A, SessionError, Turn
from a2a_celery.agents import Agent
from a2a_celery.execution import run as run_module
from a2a_celery.features.feature import SettleArguments
from a2a_celery.features.worker import RUN_FEATURES
from a2a_celery.lifecycle.states import COMPLETED, FAILED, short_name
from a2a_celery.store import AsyncStore, Keys
from tests.support.store.seeds import Seeds

from .scene import TurnByTurn

app = Celery("features", broker="memory://", set_as_current=False)
a2a = A2A(app)


class Witness:
    """Feature that records the calls to it, and the calls to the agent of its run."""

    calls: tuple[str, ...] = ()
    error: Exception | None = None

    @classmethod
    async def open(cls, run: Any, events: Any) -> Witness:
        cls.calls += (f"open {run.claim.ref.name}",)
        return cls()

    async def settle_arguments(self, state: TaskState, refusal: object = None) -> SettleArguments:
        Witness.calls += (f"settle {short_name(state)}",)
        if self.error is not None and state != FAILED:
            raise self.error
        return {}


@pytest.fixture(autouse=True)
def witness(monkeypatch: pytest.MonkeyPatch) -> type[Witness]:
    """Open the feature `Witness` in the runs of agents with `cancel_grace=7`."""
    monkeypatch.setattr(run_module, "RUN_FEATURES", {("cancel_grace", 7): Witness.open})
    monkeypatch.setattr(Witness, "calls", ())
    monkeypatch.setattr(Witness, "error", None)
    return Witness


@a2a.agent("plain", description="Uses no feature.")
async def plain(turn: Turn) -> str:
    assert turn._run.features == ()
    return "done"


@a2a.agent("watched", description="Uses the feature.", cancel_grace=7)
async def watched(turn: Turn) -> str:
    Witness.calls += ("agent",)
    assert turn._run.feature(Witness) in turn._run.features
    return "done"


async def test_a_run_opens_the_features_of_its_agent(turns: TurnByTurn, witness: type[Witness]) -> None:
    assert await turns.begin("watched") == (COMPLETED, "")

    assert witness.calls == ("open t.1", "agent", "settle COMPLETED")


async def test_a_run_calls_no_feature_that_its_agent_does_not_use(turns: TurnByTurn, witness: type[Witness]) -> None:
    assert await turns.begin("plain") == (COMPLETED, "")

    assert witness.calls == ()


async def test_a_feature_can_fail_its_run(
    turns: TurnByTurn, store: AsyncStore, keys: Keys, witness: type[Witness], monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr(witness, "error", SessionError("too large"))

    state, text = await turns.begin("watched")

    assert (state, "large" in text) == (FAILED, False)
    assert witness.calls[2:] == ("settle COMPLETED", "settle FAILED")
    assert "run t.1 fails at its end: too large" in caplog.text
    assert COMPLETED not in await Seeds(store, keys).states("t")


def test_each_option_that_turns_a_feature_on_is_an_option_of_agents() -> None:
    assert {option for option, _ in RUN_FEATURES} <= {field.name for field in fields(Agent)}
