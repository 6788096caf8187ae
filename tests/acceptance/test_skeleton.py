"""The shortest way through everything: a message to a gateway, run on a worker, answered."""

from __future__ import annotations

import httpx

from tests.support.fleet import Fleet


def test_a_message_is_answered_by_a_worker(fleet: Fleet) -> None:
    fleet.worker()
    gateway = fleet.gateway()

    answer = httpx.post(
        f"{gateway.url}/message:send",
        headers={"A2A-Version": "1.0"},
        json={"message": {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": "hello"}]}},
        timeout=20,
    )

    assert answer.status_code == 200, answer.text
    task = answer.json()["task"]
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    assert task["artifacts"][0]["parts"] == [{"text": "hello"}]
