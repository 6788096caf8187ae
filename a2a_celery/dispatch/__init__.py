"""The hand-over to Celery: what a run is called there, and how it is published and revoked."""

from .publisher import Publisher, entry_name

__all__ = ["Publisher", "entry_name"]
