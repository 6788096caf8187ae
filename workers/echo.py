"""Smallest agent: a function that returns text."""

from a2a_celery import Turn

from .app import a2a


@a2a.agent("echo", description="Says back what it was told.")
async def echo(turn: Turn) -> str:
    return turn.text
