"""Agent that asks a question: the task waits in INPUT_REQUIRED, and the answer may reach another worker."""

from a2a_celery import Turn

from .app import a2a


@a2a.agent("booking", description="Books a table, and asks for what it needs to know.")
async def booking(turn: Turn) -> str:
    people = await turn.ask("For how many people?")
    while not people.strip().isdigit():
        people = await turn.ask(f"I need a number, not {people!r}. For how many people?")
    day = await turn.ask("For which day?")
    return f"A table for {people.strip()} is booked for {day.strip()}."
