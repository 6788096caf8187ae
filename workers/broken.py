"""Agent that fails: its client receives FAILED and a reference, which the worker logs with the traceback."""

from a2a_celery import Turn

from .app import a2a


@a2a.agent("broken", description="Fails, whatever it is asked.")
def broken(turn: Turn) -> str:
    raise RuntimeError("the secret reason, which stays in the worker's log")
