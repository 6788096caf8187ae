"""Sample agents, ready to run: ``celery -A workers.app worker``, or all of it with ``a2a-celery demo``."""
