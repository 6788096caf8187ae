"""Celery app of the sample agents.

Broker and store come from the environment (CELERY_BROKER_URL, A2A_STORE_URL); see the README.
"""

from celery import Celery

from a2a_celery import A2A

AGENTS = ("echo", "story", "slow", "booking", "broken", "words", "frameworks")

app = Celery("workers", include=[f"{__package__}.{name}" for name in AGENTS])
app.conf.update(
    worker_send_task_events=True,  # for Flower
    task_send_sent_event=True,
)
a2a = A2A(app)
