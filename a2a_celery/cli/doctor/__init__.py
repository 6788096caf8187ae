"""``celery -A … a2a doctor``: collect the state of an installation, then check it."""
