"""Celery apps and agents of the tests. Fleets load each module by its name."""
