"""An agent that fails: its client gets FAILED and a reference, the worker's log the traceback under it."""

from a2a_celery import Turn

from .app import a2a


@a2a.agent("broken", description="Fails, whatever it is asked.")
def broken(turn: Turn) -> str:
    raise RuntimeError("the secret reason, which stays in the worker's log")
