"""Crews whose model hangs at some calls, so that a test can kill the worker at these points."""

from __future__ import annotations

import os
import threading

from celery import Celery
from crewai import Crew
from crewai.tools import tool

from a2a_celery import A2A, Turn, current_step_key
from a2a_celery.frameworks.crewai import crewai_agent
from tests.support.agents.basic import card
from tests.support.agents.durable_agents import is_passed, write_line

from .script import Script, crew_of, script

ROUNDS = [["a"], ["b"], ["c"], ["d", "e"]]
"""Cities that the model looks up in each of its responses."""

STOPS = (3, 4)
"""Model calls before which the model hangs: after the third tool call, and after two parallel tool calls."""

ANSWER = "It is warm in a, b, c, d and e."

app = Celery("tests", broker=os.environ.get("CELERY_BROKER_URL", "memory://"), set_as_current=False)
app.conf.update(task_default_queue=os.environ.get("TEST_QUEUE", "celery"))
a2a = A2A(app)


def stop_or_record(number: int) -> None:
    """Record a call to the model. Hang instead if the call is in `STOPS` and no earlier attempt has reached it."""
    if number in STOPS and not is_passed(f"crewai.before-{number}"):
        threading.Event().wait()
    write_line("crewai", "questions", str(number))


def make_crew(turn: Turn) -> Crew:
    """Return a crew that looks up the weather in rounds."""

    @tool("look_up")
    def look_up(city: str) -> str:
        """Look up the weather of a city."""
        write_line("crewai", "keys", current_step_key())
        write_line("crewai", "looked-up", city)
        return f"warm in {city}"

    calls = [[("look_up", {"city": city}) for city in cities] for cities in ROUNDS]
    return crew_of(script(*calls, ANSWER, on_call=stop_or_record), look_up)


def make_essay(turn: Turn) -> Crew:
    """Return a crew that asks for feedback on its text."""
    model = Script(
        model="script",
        answers=lambda messages: "better" if "shorter" in str(messages) else "good",
        on_call=lambda number: write_line("essay", "questions", str(number)),
    )
    return crew_of(model, task={"human_input": True})


a2a.add_agent(card("weather"), crewai_agent(make_crew), max_attempts=5)
a2a.add_agent(card("essay"), crewai_agent(make_essay))
