"""Settings of a Django project on the PostgreSQL server of a test. DJANGO_SETTINGS_MODULE names this module."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

from tests.support.django_orm import APPLICATION

_url = urlsplit(os.environ["TEST_DJANGO_DATABASE"])

SECRET_KEY = "of-a-test"
INSTALLED_APPS: list[str] = []
USE_TZ = True
TIME_ZONE = None  # keep the time zone of the process
LOGGING_CONFIG = None
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _url.path.lstrip("/"),
        "USER": _url.username,
        "PASSWORD": _url.password,
        "HOST": _url.hostname,
        "PORT": _url.port,
        "OPTIONS": {"application_name": APPLICATION},
    }
}
