"""The commands: ``celery -A … a2a …`` and ``a2a-celery``."""
