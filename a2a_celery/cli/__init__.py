"""Command line: ``celery -A … a2a`` for an app, and ``a2a-celery`` without one."""
