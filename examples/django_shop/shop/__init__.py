"""Shop whose Celery task is also an A2A agent."""

from .celery import app as celery_app

__all__ = ["celery_app"]
