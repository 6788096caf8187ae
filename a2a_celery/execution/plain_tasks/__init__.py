"""Plain Celery tasks as agents: registration, calls in a Celery thread, retries and results."""
