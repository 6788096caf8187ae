"""Results of messages to the gateway of a2a_celery and to the SDK's server. One table has the expected results for each
binding of both protocol versions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from a2a.types import AgentCard, Task, TaskState

from a2a_celery.client import RemoteAgent, Result, StopReason, input_requests
from tests.support.agents.states import States
from tests.support.clients.bindings import ServedFleet
from tests.support.processes.fleet import running_fleet
from tests.support.processes.plain_server import plain_server

BINDINGS = [(binding, version) for binding in ("JSONRPC", "HTTP+JSON", "GRPC") for version in ("1.0", "0.3")]

OUR_BINDINGS = [pair for pair in BINDINGS if pair != ("GRPC", "0.3")]
"""Bindings of the a2a_celery gateway, without gRPC of version 0.3. That binding has no tenants, so it reaches only the
first agent, which is not the agent of these tests."""


@dataclass(frozen=True)
class Case:
    """Expected result of a state."""

    stop_reason: StopReason
    state: int | None
    text: str


def ends(name: str, stop_reason: StopReason = "end_turn") -> Case:
    return Case(stop_reason, TaskState.Value(f"TASK_STATE_{name}"), f"{name} it is")


def goes_on(name: str) -> Case:
    return Case("end_turn", TaskState.TASK_STATE_COMPLETED, f"after {name}")


TABLE = {
    "COMPLETED": ends("COMPLETED"),
    "FAILED": ends("FAILED"),
    "CANCELED": ends("CANCELED"),
    "REJECTED": ends("REJECTED"),
    "INPUT_REQUIRED": ends("INPUT_REQUIRED", "interrupt"),
    "AUTH_REQUIRED": ends("AUTH_REQUIRED", "interrupt"),
    "SUBMITTED": goes_on("SUBMITTED"),
    "WORKING": goes_on("WORKING"),
    "UNSPECIFIED": goes_on("UNSPECIFIED"),
    "RETRY_AFTER_JITTER": goes_on("RETRY_AFTER_JITTER"),
}
"""Expected result by state, for every server and binding. RETRY_AFTER_JITTER is a state that no version defines."""


@pytest.fixture(scope="module")
def served_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedFleet]:
    with running_fleet(tmp_path_factory.mktemp("fleet"), app="tests.support.agents.states") as fleet:
        gateway = fleet.gateway(grpc=True)
        worker = fleet.worker(pool="threads", concurrency=4)
        yield ServedFleet(fleet, gateway, worker)


@asynccontextmanager
async def agent_at(url: str, binding: str, version: str) -> AsyncIterator[RemoteAgent]:
    """Yield the agent with a card that only has the interface of one binding and version."""
    async with RemoteAgent(url) as original:
        card = AgentCard()
        card.CopyFrom(await original.card())
    interfaces = [
        i for i in card.supported_interfaces if (i.protocol_binding, i.protocol_version) == (binding, version)
    ]
    del card.supported_interfaces[:]
    card.supported_interfaces.extend(interfaces)
    async with RemoteAgent(url, card=card, transports=[binding]) as agent:
        yield agent


async def check_table(agent: RemoteAgent) -> None:
    """Check all cases of the table, and answer tasks that need an answer."""
    await asyncio.gather(*(check_case(agent, name, case) for name, case in TABLE.items()))
    direct = await agent.session().send("MESSAGE", deadline=60)
    assert (direct.stop_reason, direct.text) == ("end_turn", "MESSAGE it is")


async def check_case(agent: RemoteAgent, name: str, case: Case) -> None:
    session = agent.session()
    result = await session.send(name, deadline=60)
    assert Case(result.stop_reason, result.state, result.text) == case, name
    assert [part.text for part in input_requests(result)] == ([case.text] if session.is_interrupted else []), name
    assert (session.task_id, session.context_id) == (result.task_id, result.context_id), name
    assert task_without_history(result) == task_without_history(await agent.get(result.task_id)), name
    if case.stop_reason == "interrupt":
        answer_result = await session.send("seven", deadline=60)
        assert (answer_result.task_id, answer_result.text) == (result.task_id, "after seven")
        assert answer_result.stop_reason == "end_turn"


def task_without_history(result: Result) -> Result:
    """Return the result's task without its history, because streams do not contain the history."""
    task = Task()
    assert isinstance(result.raw, Task)
    task.CopyFrom(result.raw)
    task.ClearField("history")
    return Result(task)


@pytest.mark.parametrize("streams", [True, False], ids=["streams", "polls"])
@pytest.mark.parametrize(("binding", "version"), OUR_BINDINGS)
async def test_a_gateway_of_ours(served_fleet: ServedFleet, binding: str, version: str, streams: bool) -> None:
    name = "states" if streams else "states-without-streams"
    async with agent_at(f"{served_fleet.url}/agents/{name}", binding, version) as agent:
        await check_table(agent)


@pytest.mark.parametrize("streams", [True, False], ids=["streams", "polls"])
@pytest.mark.parametrize(("binding", "version"), BINDINGS)
async def test_the_sdks_plain_server(binding: str, version: str, streams: bool) -> None:
    async with plain_server(States(), streaming=streams) as url, agent_at(url, binding, version) as agent:
        await check_table(agent)
