"""Push notifications signed by the Standard Webhooks library."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime

from a2a.types import StreamResponse, TaskState, TaskStatus, TaskStatusUpdateEvent
from google.protobuf.json_format import MessageToJson
from standardwebhooks import Webhook

from a2a_celery.lifecycle import EventId

SECRET = "whsec_c2VjcmV0IG9mIHR3ZW50eS1mb3VyIGJ5dGVzIQ=="
OLD_SECRET = "whsec_YW4gb2xkZXIgc2VjcmV0LCBzdGlsbCBpbiB1c2U="
OTHER_SECRET = "whsec_YSBzZWNyZXQgdGhhdCBub2JvZHkgZXZlciBzYXc="

DELIVERY_ID = "3f786850e387550fdab836ed7e6dc881de23001b"


@dataclass(frozen=True)
class Post:
    """Request of a webhook sender."""

    headers: dict[str, str]
    body: bytes


def status_event(text_id: str = "t1", state: TaskState = TaskState.TASK_STATE_WORKING) -> StreamResponse:
    """Return a push notification with a status update."""
    update = TaskStatusUpdateEvent(task_id=text_id, context_id="c1", status=TaskStatus(state=state))
    return StreamResponse(status_update=update)


def post(
    version: int = 1,
    *,
    delivery_id: str = DELIVERY_ID,
    event: StreamResponse | None = None,
    body: str | None = None,
    secrets: tuple[str, ...] = (SECRET,),
    at: float | None = None,
    recorded_us: int = 0,
    **headers: str,
) -> Post:
    """Return the request for `event` or `body`, signed with each of `secrets` at the time `at`, or now if `at` is
    None."""
    text = MessageToJson(event or status_event(), indent=None) if body is None else body
    message_id, current_time = f"{delivery_id}_{EventId(version, recorded_us)}", int(time.time() if at is None else at)
    signed_at = datetime.fromtimestamp(current_time, UTC)
    signatures = [Webhook(secret).sign(message_id, signed_at, text) for secret in secrets]
    return Post(
        {
            "content-type": "application/a2a+json",
            "webhook-id": message_id,
            "webhook-timestamp": str(current_time),
            "webhook-signature": " ".join(signatures),
            **headers,
        },
        text.encode(),
    )
