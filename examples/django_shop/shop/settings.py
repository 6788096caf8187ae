"""Settings of the project. The settings of a2a_celery have the prefix CELERY_A2A_."""

import os
from pathlib import Path

SECRET_KEY = os.environ.get("DJANGO_SECRET_KEY", "for-development-only")
ALLOWED_HOSTS = ["localhost", "127.0.0.1"]
INSTALLED_APPS = ["orders"]
ROOT_URLCONF = "shop.urls"
TIME_ZONE = "UTC"  # also the time zone of log lines
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {
    "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": Path(__file__).resolve().parents[1] / "shop.sqlite3"}
}

CELERY_TASK_ACKS_LATE = True
CELERY_A2A_LEASE_TTL = 15  # seconds
