"""``celery -A … a2a doctor``: collection of the state of an installation, and checks of that state."""
