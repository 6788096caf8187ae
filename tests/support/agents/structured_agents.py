"""Agents that ask questions with a schema."""

from __future__ import annotations

from enum import Enum

from celery import Celery
from pydantic import BaseModel, Field, field_validator

from a2a_celery import A2A, Question, Turn, current_turn
from tests.support.agents import basic as agents

app = Celery("structured")
app.conf.task_default_queue = agents.app.conf.task_default_queue
app.conf.broker_connection_retry_on_startup = True
a2a = A2A(app)


class Meal(Enum):
    LUNCH = "lunch"
    DINNER = "dinner"


class Table(BaseModel):
    """Answer that describes the table to book."""

    people: int = Field(ge=1, le=20, description="How many of you are coming?")
    meal: Meal = Meal.DINNER
    name: str = Field(min_length=1, title="Your name")
    smoking: bool = False
    budget: float | None = None
    guests: list[str] = []

    @field_validator("people")
    @classmethod
    def even(cls, people: int) -> int:
        if people % 2:
            raise ValueError("our tables are for an even number of people")
        return people


@a2a.agent("table")
async def table(turn: Turn) -> str:
    """Book a table. Ask which table to book, and then ask for confirmation."""
    booking = await turn.ask("Which table?", schema=Table)
    sure = await turn.ask("Shall I book it?", schema={"type": "boolean", "title": "Shall I book it?"})
    return f"{booking.people} for {booking.name}, {booking.meal.value}" if sure else "not booked"


@a2a.agent("survey")
def survey(turn: Turn) -> str:
    """Ask several questions at once."""
    colours = {"type": "string", "enum": ["red", "blue"]}
    answers = turn.blocking.ask_all(
        {
            "size": Question("Which size?", int),
            "colour": Question("Which colour?", colours),
            "note": Question("Anything else?"),
        }
    )
    return f"{answers['size'] + 1} {answers['colour']} {answers['note']}"


@app.task
def plain(text: str, size: int = 0) -> str:
    """Ask from a plain Celery task."""
    turn = current_turn()
    assert turn is not None
    booking = turn.blocking.ask("Which table?", schema=Table)
    return f"{text}: {booking.people} for {booking.name}"


a2a.expose(plain)
