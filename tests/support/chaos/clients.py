"""Clients of the chaos test that retry requests without a response and record all responses."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import httpx

from tests.support.chaos.plan import Scenario
from tests.support.clients.bindings import Frame, frames

HEADERS = {"A2A-Version": "1.0"}
TIMEOUT = httpx.Timeout(15.0, connect=3.0)
"""Timeouts in seconds, after which a client tries the next gateway."""

ENDED = {f"TASK_STATE_{state}" for state in ("COMPLETED", "FAILED", "CANCELED", "REJECTED")}
PAUSED = {"TASK_STATE_INPUT_REQUIRED", "TASK_STATE_AUTH_REQUIRED"}


@dataclass
class Transcript:
    """Actions of a client and the responses that the client received.

    Attributes:
        scenario: Scenario of the client.
        context_id: Id of the client's context.
        sent_ids: Ids of the client's messages, in order.
        accepted_ids: Ids of the messages that a gateway has accepted.
        task_id: Id of the task, or "" before the first response.
        state: Last received state of the task.
        events: Versions and data of the SSE events of the stream.
        direct: Text of a response that is a message.
        is_canceled: The client cancelled the task, and received the state CANCELED.
        resume_count: Number of times that the client resumed the stream.
        is_done: The client finished the scenario without a problem.
        wrong: Responses that no client may receive.
    """

    scenario: Scenario
    context_id: str
    sent_ids: list[str] = field(default_factory=list)
    accepted_ids: list[str] = field(default_factory=list)
    task_id: str = ""
    state: str = ""
    events: list[tuple[int, Any]] = field(default_factory=list)
    direct: str = ""
    is_canceled: bool = False
    resume_count: int = 0
    is_done: bool = False
    wrong: list[str] = field(default_factory=list)


class Refusal(Exception):
    """Error response of a gateway for which a retry is useless."""

    def __init__(self, status: int, error: dict[str, Any]) -> None:
        super().__init__(f"{status}: {error}")
        self.reason = error["details"][0]["reason"]


class Client:
    """Client that runs a scenario against the gateways at `urls`. Each request is sent to the next gateway."""

    def __init__(self, scenario: Scenario, urls: list[str], http: httpx.AsyncClient, responses: Counter[str]) -> None:
        self.transcript = Transcript(scenario, context_id=f"scenario-{scenario.number}")
        self._urls = urls
        self._turn = scenario.gateway
        self._http = http
        self._responses = responses
        self._last_event_id = ""

    async def run(self) -> None:
        """Run the scenario and record errors in the transcript."""
        transcript, scenario = self.transcript, self.transcript.scenario
        try:
            if scenario.follow_ups:
                await self._send_follow_ups()
            elif scenario.cancel_after is not None:
                await self._send(scenario.order.as_text(), immediately=True)
                await asyncio.sleep(scenario.cancel_after)
                await self._cancel()
            elif scenario.call_kind == "stream":
                await self._stream(scenario.order.as_text())
            elif scenario.agent == "plain":
                await self._send_once(scenario.order.as_text(), immediately=scenario.call_kind == "poll")
            else:
                await self._send(scenario.order.as_text(), immediately=scenario.call_kind == "poll")
            await self._wait_for_end()
            transcript.is_done = True
        except Refusal as e:
            transcript.wrong.append(f"refused: {e}")
        except AssertionError as e:
            transcript.wrong.append(f"wrong response: {e}")

    async def _wait_for_end(self) -> None:
        """Poll until the task is terminal, and answer the agent's questions."""
        transcript, answer_count = self.transcript, 0
        while transcript.task_id and transcript.state not in ENDED:
            if transcript.state in PAUSED:
                answer_count += 1
                assert answer_count <= transcript.scenario.order.asks, f"one question too many: {transcript.state}"
                await self._send(f"answer-{answer_count}", immediately=transcript.scenario.call_kind == "poll")
                continue
            await asyncio.sleep(0.5)
            self._update_task(await self._request("GET", f"/tasks/{transcript.task_id}"))

    async def _send_follow_ups(self) -> None:
        """Send follow-up messages. Wait for the end of a turn only after the last message."""
        transcript = self.transcript
        await self._send("message-0", immediately=True)
        for number in range(1, transcript.scenario.follow_ups + 1):
            await asyncio.sleep(0.15 * (number % 3))
            last = number == transcript.scenario.follow_ups
            try:
                await self._send("stop" if last else f"message-{number}", immediately=not last)
            except Refusal as e:
                await self._require_ended(e, "UNSUPPORTED_OPERATION")  # a worker was lost
                return

    async def _cancel(self) -> None:
        transcript = self.transcript
        try:
            task = await self._request("POST", f"/tasks/{transcript.task_id}:cancel", {})
        except Refusal as e:
            await self._require_ended(e, "TASK_NOT_CANCELABLE")
        else:
            self._update_task(task)
        transcript.is_canceled = transcript.state == "TASK_STATE_CANCELED"

    async def _require_ended(self, refusal: Refusal, reason: str) -> None:
        """Require that the gateway rejected a request because the task is terminal."""
        self._update_task(await self._request("GET", f"/tasks/{self.transcript.task_id}"))
        assert refusal.reason == reason, refusal
        assert self.transcript.state in ENDED, f"refused, but the task has not ended: {refusal}"

    def _message(self, text: str, *, immediately: bool = False) -> dict[str, Any]:
        transcript = self.transcript
        transcript.sent_ids.append(uuid4().hex)
        message = {"messageId": transcript.sent_ids[-1], "role": "ROLE_USER", "parts": [{"text": text}]}
        message |= {"taskId": transcript.task_id} if transcript.task_id else {"contextId": transcript.context_id}
        return {"message": message, "configuration": {"returnImmediately": immediately}}

    async def _send(self, text: str, *, immediately: bool = False) -> None:
        body = self._message(text, immediately=immediately)
        self._accept(await self._request("POST", "/message:send", body), immediately=immediately)

    async def _send_once(self, text: str, *, immediately: bool) -> None:
        """Send a message without a retry, because the agent does not deduplicate messages."""
        body = self._message(text, immediately=immediately)
        answer = await self._try_request("POST", "/message:send", body)
        if answer is not None:
            self._accept(answer, immediately=immediately)

    def _accept(self, answer: dict[str, Any], *, immediately: bool) -> None:
        transcript = self.transcript
        transcript.accepted_ids.append(transcript.sent_ids[-1])
        if "message" in answer:
            transcript.direct = answer["message"]["parts"][0]["text"]
            return
        self._update_task(answer["task"])
        assert immediately or transcript.state in ENDED | PAUSED, f"a blocking call returned early: {answer}"

    def _update_task(self, task: dict[str, Any]) -> None:
        transcript = self.transcript
        assert transcript.task_id in ("", task["id"]), f"two tasks for one scenario: {transcript.task_id}, {task['id']}"
        if transcript.state in ENDED:
            assert transcript.state == task["status"]["state"], (
                f"the terminal state changed: {transcript.state}, {task['status']}"
            )
        transcript.task_id, transcript.state = task["id"], task["status"]["state"]

    async def _request(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """Retry a request until a gateway responds, and return the response.

        Raises:
            Refusal: The response is an error for which a retry is useless.
        """
        while True:
            answer = await self._try_request(method, path, body)
            if answer is not None:
                return answer
            await asyncio.sleep(0.3)

    async def _try_request(self, method: str, path: str, body: Any) -> dict[str, Any] | None:
        try:
            url = f"{self._next_url()}{path}"
            answer = await self._http.request(method, url, json=body, headers=HEADERS, timeout=TIMEOUT)
        except httpx.TransportError as e:
            self._responses[f"{method}: {type(e).__name__}"] += 1
            return None
        self._responses[f"{method}: {answer.status_code}"] += 1
        if answer.status_code == 200:
            body_json: dict[str, Any] = answer.json()
            return body_json
        return self._raise_if_final(answer.status_code, answer.text)

    def _raise_if_final(self, status: int, text: str) -> None:
        """Raise `Refusal` unless the request may be retried after the error response."""
        try:
            error = json.loads(text)["error"]
        except (ValueError, KeyError):
            raise AssertionError(f"no clean error: {status} {text}") from None
        if status not in (429, 503):  # 429: the store is nearly full
            raise Refusal(status, error)

    def _next_url(self) -> str:
        self._turn += 1
        return f"{self._urls[self._turn % len(self._urls)]}/agents/{self.transcript.scenario.agent}"

    async def _stream(self, text: str) -> None:
        """Read the stream to its end. After an interruption, resume the stream over a new connection."""
        transcript = self.transcript
        body = self._message(text)
        while True:
            path, headers, payload = "/message:stream", HEADERS, body
            if transcript.task_id:
                transcript.resume_count += 1
                path, payload = f"/tasks/{transcript.task_id}:subscribe", None
                headers = {**HEADERS, "Last-Event-ID": self._last_event_id}
            try:
                if await self._read(path, headers, payload):
                    return
            except httpx.TransportError as e:
                self._responses[f"stream: {type(e).__name__}"] += 1
                if self._stream_is_over():
                    return
            await asyncio.sleep(0.3)

    async def _read(self, path: str, headers: dict[str, str], body: Any) -> bool:
        """Read the SSE events of one connection. Return True if the stream is complete."""
        request = self._http.stream("POST", f"{self._next_url()}{path}", json=body, headers=headers, timeout=TIMEOUT)
        async with request as response:
            self._responses[f"stream: {response.status_code}"] += 1
            if response.status_code != 200:
                self._raise_if_final(response.status_code, (await response.aread()).decode())
                return False
            async with aclosing(frames(response)) as stream:  # type: ignore[type-var]
                async for frame in stream:
                    if frame.event == "error":
                        self._responses["stream: error frame"] += 1
                        self._raise_if_final(frame.data["error"]["code"], json.dumps(frame.data))
                        return False
                    self._add_frame(frame)
        assert self._stream_is_over(), f"the stream ended early, after {self.transcript.events[-1:]}"
        return True

    def _add_frame(self, frame: Frame) -> None:
        transcript = self.transcript
        transcript.accepted_ids = transcript.sent_ids[:]
        self._last_event_id = frame.id
        transcript.events.append((frame.version, frame.data))
        match frame.data:
            case {"task": task}:
                self._update_task(task)
            case {"statusUpdate": update}:
                transcript.task_id, transcript.state = update["taskId"], update["status"]["state"]
            case {"message": message}:
                transcript.direct = message["parts"][0]["text"]

    def _stream_is_over(self) -> bool:
        return bool(self.transcript.direct) or self.transcript.state in ENDED | PAUSED
