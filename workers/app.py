"""Celery app of the sample agents.

The environment variables CELERY_BROKER_URL and A2A_STORE_URL name the broker and the store; see the README.
"""

from celery import Celery

from a2a_celery import A2A

AGENTS = ("echo", "story", "report", "slow", "booking", "broken", "words", "frameworks")

app = Celery("workers", include=[f"{__package__}.{name}" for name in AGENTS])
app.conf.update(
    worker_send_task_events=True,  # for Flower
    task_send_sent_event=True,
)
a2a = A2A(app)
