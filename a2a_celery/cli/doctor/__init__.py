"""``celery -A … a2a doctor``: survey and checks of an installation."""
