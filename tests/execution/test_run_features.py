"""Features of a run: which of them a run opens, and how they take part in its settlement."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, ClassVar

import pytest
from a2a.types import TaskState
from celery import Celery

from a2a_celery import A2A, SessionError, Turn
from a2a_celery.agents import Agent
from a2a_celery.execution import run as run_module
from a2a_celery.execution.agents.running_agent import CURRENT
from a2a_celery.features import FEATURE_OPTIONS
from a2a_celery.features.feature import RunFeature
from a2a_celery.features.sessions.section import SessionSection, session_key
from a2a_celery.features.worker import CLAIM_SECTIONS, RUN_FEATURES
from a2a_celery.lifecycle.states import COMPLETED, FAILED, SUBMITTED, WORKING, short_name
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.verbs import Section
from tests.support.store.seeds import ANN, CONTEXT, Seeds

from .scene import TurnByTurn

app = Celery("features", broker="memory://", set_as_current=False)
a2a = A2A(app)


class Witness(RunFeature):
    """Feature that records the calls to it, and the calls to the agent of its run.

    Attributes:
        error: Error of the feature at the end of the run, unless the run has failed.
        opening_error: Error of the feature at the beginning of the run.
        section: Section of the feature at the end of the run.
    """

    calls: tuple[str, ...] = ()
    error: Exception | None = None
    opening_error: BaseException | None = None
    section: ClassVar[Section[Any] | None] = None

    @classmethod
    async def open(cls, run: Any, events: Any) -> Witness:
        assert CURRENT.get(None) is not None, "the features have access to the agent"
        cls.calls += (f"open {run.claim.ref.name}",)
        if cls.opening_error is not None:
            raise cls.opening_error
        return cls()

    async def section_for_end(self, state: TaskState, refusal: object = None) -> Section[Any] | None:
        Witness.calls += (f"settle {short_name(state)}" + (" after a refusal" if refusal else ""),)
        if self.error is not None and state != FAILED:
            raise self.error
        return self.section


@pytest.fixture(autouse=True)
def witness(monkeypatch: pytest.MonkeyPatch) -> type[Witness]:
    """Open the feature `Witness` in the runs of agents with `cancel_grace=7`."""
    monkeypatch.setattr(run_module, "RUN_FEATURES", {("cancel_grace", 7): Witness.open})
    monkeypatch.setattr(Witness, "calls", ())
    for name in ("error", "opening_error", "section"):
        monkeypatch.setattr(Witness, name, None)
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


async def test_a_feature_that_cannot_be_opened_fails_its_run(
    turns: TurnByTurn, witness: type[Witness], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(witness, "opening_error", SessionError("sealed"))

    assert (await turns.begin("watched"))[0] == FAILED

    assert witness.calls == ("open t.1",), "neither the agent nor a feature is called"


async def test_a_failure_survives_the_refusal_of_another_section(
    turns: TurnByTurn, store: AsyncStore, keys: Keys, witness: type[Witness], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A feature has failed the run, and a section refuses the end, because the store has a newer version of the
    session."""
    monkeypatch.setattr(witness, "error", SessionError("too large"))
    monkeypatch.setattr(witness, "section", SessionSection.of(keys, 0, b"{}"))
    await store.redis.hset(session_key(keys, ANN, CONTEXT), mapping={"version": 5})

    async def adapt(self: Witness, state: TaskState, refusal: object = None) -> Section[Any] | None:
        section = await original(self, state, refusal)
        return None if refusal else section

    original = witness.section_for_end
    monkeypatch.setattr(witness, "section_for_end", adapt)

    assert (await turns.begin("watched"))[0] == FAILED

    assert witness.calls[2:] == ("settle COMPLETED", "settle FAILED", "settle FAILED after a refusal")
    assert await Seeds(store, keys).states("t") == [SUBMITTED, WORKING, FAILED]


@pytest.mark.parametrize(("option", "value"), RUN_FEATURES | CLAIM_SECTIONS)
def test_the_values_that_turn_a_feature_on_are_values_of_agents(option: str, value: Any) -> None:
    @a2a.agent(f"with-{option}", description="Turns a feature on.", **{option: value})
    async def with_option(turn: Turn) -> str:
        return ""

    assert a2a.agents[f"with-{option}"].option(option) == value


def test_each_option_that_turns_a_feature_on_is_an_option_of_agents() -> None:
    options = {field.name for field in fields(Agent)} | FEATURE_OPTIONS
    assert {option for option, _ in (*RUN_FEATURES, *CLAIM_SECTIONS)} <= options
