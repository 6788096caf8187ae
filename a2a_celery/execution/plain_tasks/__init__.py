"""Plain Celery tasks as agents: registration, calls in a thread of Celery, retries and results."""
