"""The hand-over to Celery: what a run is called there, and how it is published and revoked."""

from .options import RunOptions
from .publisher import Publisher, entry_name

__all__ = ["Publisher", "RunOptions", "entry_name"]
