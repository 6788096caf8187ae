"""Plain Celery tasks as agents: their arguments in messages, and their results in the result backend."""
