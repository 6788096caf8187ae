"""Agents for tests of the operator's page, including an agent whose output contains script and markup."""

from __future__ import annotations

import asyncio

from a2a.types import AgentExtension, AgentSkill, Artifact, Part
from celery import Celery
from celery.schedules import crontab
from google.protobuf.json_format import ParseDict
from google.protobuf.struct_pb2 import Value

from a2a_celery import A2A, Turn, step
from tests.support.agents import basic as agents
from tests.support.agents import structured_agents
from tests.support.agents.basic import REQUIRED_EXTENSION, card

app = Celery("page")
app.conf.task_default_queue = agents.app.conf.task_default_queue
app.conf.broker_connection_retry_on_startup = True
a2a = A2A(app)
for function in (
    agents.echo,
    agents.count,
    agents.halves,
    agents.ask,
    structured_agents.table,
    structured_agents.survey,
):
    a2a.agent(function.__name__)(function)
a2a.add_agent(card("patient"), agents.Patient)
a2a.add_agent(card("direct"), agents.Direct)
a2a.add_agent(card("quiet", streaming=False, push_notifications=False), agents.Full)
a2a.add_agent(card("strict", extensions=[AgentExtension(uri=REQUIRED_EXTENSION, required=True)]), agents.Full)


@a2a.agent("counts_aloud")
async def counts_aloud(turn: Turn) -> None:
    """Send as many status updates as the message requests."""
    for number in range(int(turn.text)):
        await turn.say(str(number))


async def search(turn: Turn, city: str) -> list[str]:
    async with turn.model_call("some-model"):
        await asyncio.sleep(0.05)
    async with turn.tool_call("hotels"):
        await asyncio.sleep(0.05)
    return [f"{city} {number}" for number in range(300)]


@step(autoretry_for=(OSError,), max_retries=1, default_retry_delay=0.01)
async def rate(hotels: list[str], failures: list[OSError]) -> int:
    """Fail with each of `failures`, and then return the number of hotels."""
    if failures:
        raise failures.pop()
    return len(hotels)


@a2a.agent("plans", max_attempts=3, autoretry_for=(ConnectionError,), default_retry_delay=1)
async def plans(turn: Turn) -> str:
    """Execute one durable step in the first attempt and another in the second attempt, ask, and wait for a signal."""
    hotels = await turn.step("search", search, turn, turn.text)
    if turn.retries == 0:
        raise ConnectionError("for the second attempt")
    await rate(hotels, [OSError("for the second attempt of the step")])
    choice = await turn.ask("Which hotel?")
    await turn.wait_for("approval", timeout=3600)
    return f"Booked {choice}"


@a2a.agent("many_calls")
async def many_calls(turn: Turn) -> None:
    """Call a model as many times as the message requests."""
    for _ in range(int(turn.text)):
        async with turn.model_call("some-model"):
            pass


@a2a.agent("fails")
async def fails(turn: Turn) -> None:
    """Fail with an error whose text only the worker's log contains."""
    raise RuntimeError("not for clients")


@a2a.agent("approval")
async def approval(turn: Turn) -> str:
    """Wait for the signal ``approval``, and return its payload."""
    return str((await turn.wait_for("approval")).payload)


@a2a.agent("asks_later")
async def asks_later(turn: Turn) -> str:
    """Ask a question after the signal ``go``."""
    await turn.wait_for("go")
    return await turn.ask("How many?")


MARK = "<script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">"
RTL = "\u202eright to left\u202c שלום"
HUGE = "many words " * 20_000


def parts() -> list[Part]:
    """Return parts of each kind. Most of them contain markup or script."""
    return [
        Part(text=f"{MARK} {RTL}"),
        Part(data=ParseDict({MARK: [MARK, RTL, 1.5, None]}, Value())),
        Part(url="javascript:document.title='taken'", filename="script link"),
        Part(url="data:text/html,<script>1</script>", filename="data link"),
        Part(url="https://example.com/report.pdf", filename=f"fine {MARK}"),
        Part(raw=MARK.encode(), filename=f"../{MARK}.html", media_type="text/html"),
        Part(text=HUGE, media_type=MARK),
    ]


@a2a.agent(
    "hostile",
    description=f"Says {MARK}",
    skills=[AgentSkill(id="x", name=MARK, description=MARK, tags=[MARK], examples=[MARK])],
)
async def hostile(turn: Turn) -> Artifact:
    """Send hostile parts in a status, a question and an artifact."""
    await turn.say(parts=parts())
    await turn.ask(parts=parts())
    return Artifact(artifact_id=MARK, name=MARK, description=MARK, parts=parts())


a2a.schedule("nightly report", crontab(hour=2, minute=0), "patient", "make the report", overlap="skip")
