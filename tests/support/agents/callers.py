"""App without agents and without a store, whose workers execute `a2a.call` tasks."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from celery import Celery

from a2a_celery.client.calling import Remote, Webhook, call_task, progress
from a2a_celery.client.remote_agent import RemoteAgent
from a2a_celery.client.result import Result

BEARER = "a-bearer-that-must-stay-secret"
WEBHOOK_SECRET = "0123456789abcdef0123456789abcdef"

app = Celery("callers")
app.conf.task_default_queue = os.environ.get("TEST_CALL_QUEUE", "calls")
app.conf.result_backend = os.environ.get("TEST_RESULTS")
app.conf.broker_connection_retry_on_startup = True
app.conf.worker_prefetch_multiplier = int(os.environ.get("TEST_PREFETCH", "1"))
app.conf.worker_send_task_events = True
app.conf.worker_cancel_long_running_tasks_on_connection_loss = True
if os.environ.get("TEST_VISIBILITY"):
    app.conf.broker_transport_options = {
        "visibility_timeout": float(os.environ["TEST_VISIBILITY"]),
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
    }


def die(mark: Path) -> None:
    """Create the file `mark` and kill this process. Do nothing if the file exists."""
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


dies_once = os.environ.get("TEST_DIES_ONCE")
if dies_once:
    submit = RemoteAgent.submit

    async def submit_and_die(self: RemoteAgent, *args: Any, **kwargs: Any) -> Result:
        """Send the message. After the first response, kill the process."""
        result = await submit(self, *args, **kwargs)
        die(Path(dies_once or ""))
        return result

    RemoteAgent.submit = submit_and_die  # type: ignore[method-assign]

if os.environ.get("TEST_NO_LOOKS"):  # poll less often than once per test, so that only a webhook advances a step
    progress.WEBHOOK_POLL_INTERVAL_MIN = progress.WEBHOOK_POLL_INTERVAL_MAX = 3600.0

hook = os.environ.get("TEST_WEBHOOK")
call = call_task(
    app,
    remotes={"echo": Remote(os.environ.get("TEST_REMOTE", "http://127.0.0.1:1"), bearer=BEARER)},
    webhook=Webhook(hook, WEBHOOK_SECRET) if hook else None,
)
receiver = call.receiver() if hook else None


@app.task
def add(x: int, y: int) -> int:
    """Add two numbers without an agent."""
    return x + y


@app.task
def texts(results: list[dict[str, Any]]) -> list[str]:
    """Return the texts of the results of a chord."""
    return [result["text"] for result in results]


@app.task
def note(request: Any, error: BaseException, traceback: Any) -> None:
    """Errback that writes the error's type and text to the result backend."""
    app.backend.set(f"noted-{request.id}", f"{type(error).__name__}: {error}")
