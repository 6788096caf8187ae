"""Celery app of the project, and its `A2A` object."""

import os

from celery import Celery

from a2a_celery import A2A

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")

app = Celery("shop")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
a2a = A2A(app)
