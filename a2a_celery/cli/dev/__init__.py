"""Complete fleet on one machine: ``celery -A … a2a dev`` and ``a2a-celery demo``."""
