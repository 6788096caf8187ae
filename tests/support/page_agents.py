"""Agents for tests of the operator's page, including an agent whose output contains script and markup."""

from __future__ import annotations

from a2a.types import AgentExtension, AgentSkill, Artifact, Part
from celery import Celery
from celery.schedules import crontab
from google.protobuf.json_format import ParseDict
from google.protobuf.struct_pb2 import Value

from a2a_celery import A2A, Turn

from . import agents, structured_agents
from .agents import REQUIRED_EXTENSION, card

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


@a2a.agent("fails")
async def fails(turn: Turn) -> None:
    """Fail with an error whose text only the worker's log contains."""
    raise RuntimeError("not for clients")


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
