"""An agent that asks: the task waits in INPUT_REQUIRED, and the answer may reach another worker."""

from a2a_celery import InputRequired, Turn

from .app import a2a


@a2a.agent("booking", description="Books a table, and asks for what it needs to know.")
async def booking(turn: Turn) -> str:
    if turn.number == 1:
        raise InputRequired("For how many people?")
    people = turn.text.strip()
    if not people.isdigit():
        raise InputRequired(f"I need a number, not {people!r}. For how many people?")
    return f"A table for {people} is booked."
