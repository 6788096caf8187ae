"""Clients of the chaos test. They repeat requests without a response and record all responses."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import httpx

from .chaos_plan import Scenario
from .clients import Frame, frames

HEADERS = {"A2A-Version": "1.0"}
TIMEOUT = httpx.Timeout(15.0, connect=3.0)
"""Seconds without a byte after which a client tries another gateway."""

ENDED = {f"TASK_STATE_{state}" for state in ("COMPLETED", "FAILED", "CANCELED", "REJECTED")}
PAUSED = {"TASK_STATE_INPUT_REQUIRED", "TASK_STATE_AUTH_REQUIRED"}


@dataclass
class Transcript:
    """What one client did and heard.

    `sent` are its message ids in order, `accepted` those that a gateway has taken; `seen` are the numbered frames of
    its stream. `wrong` are answers that no client should get. `state` is the last it was told of its task.
    """

    scenario: Scenario
    context_id: str
    sent: list[str] = field(default_factory=list)
    accepted: list[str] = field(default_factory=list)
    task_id: str = ""
    state: str = ""
    seen: list[tuple[int, Any]] = field(default_factory=list)
    direct: str = ""
    canceled: bool = False
    resumed: int = 0
    done: bool = False
    wrong: list[str] = field(default_factory=list)


class Refused(Exception):
    """A gateway's answer that trying again won't change."""

    def __init__(self, status: int, error: dict[str, Any]) -> None:
        super().__init__(f"{status}: {error}")
        self.reason = error["details"][0]["reason"]


class Client:
    """Client that runs a scenario against the gateways at `urls`, beginning with the gateway of the scenario."""

    def __init__(self, scenario: Scenario, urls: list[str], http: httpx.AsyncClient, heard: Counter[str]) -> None:
        self.transcript = Transcript(scenario, context_id=f"scenario-{scenario.number}")
        self._urls = urls
        self._turn = scenario.gateway
        self._http = http
        self._heard = heard
        self._last_event_id = ""

    async def run(self) -> None:
        """Run the scenario. The transcript records errors."""
        transcript, scenario = self.transcript, self.transcript.scenario
        try:
            if scenario.follow_ups:
                await self._talk()
            elif scenario.cancel_after is not None:
                await self._send(scenario.order.to_text(), immediately=True)
                await asyncio.sleep(scenario.cancel_after)
                await self._cancel()
            elif scenario.how == "stream":
                await self._stream(scenario.order.to_text())
            elif scenario.agent == "plain":
                await self._send_once(scenario.order.to_text(), immediately=scenario.how == "poll")
            else:
                await self._send(scenario.order.to_text(), immediately=scenario.how == "poll")
            await self._to_its_end()
            transcript.done = True
        except Refused as e:
            transcript.wrong.append(f"refused: {e}")
        except AssertionError as e:
            transcript.wrong.append(f"a client found: {e}")

    async def _to_its_end(self) -> None:
        """Looks until the task has ended, and answers what it asks."""
        transcript, answered = self.transcript, 0
        while transcript.task_id and transcript.state not in ENDED:
            if transcript.state in PAUSED:
                answered += 1
                assert answered <= transcript.scenario.order.asks, f"one question too many: {transcript.state}"
                await self._send(f"answer-{answered}", immediately=transcript.scenario.how == "poll")
                continue
            await asyncio.sleep(0.5)
            self._told(await self._asked("GET", f"/tasks/{transcript.task_id}"))

    async def _talk(self) -> None:
        """Messages that wait for each other's turns."""
        transcript = self.transcript
        await self._send("message-0", immediately=True)
        for number in range(1, transcript.scenario.follow_ups + 1):
            await asyncio.sleep(0.15 * (number % 3))
            last = number == transcript.scenario.follow_ups
            try:
                await self._send("stop" if last else f"message-{number}", immediately=not last)
            except Refused as e:
                await self._must_have_ended(e, "UNSUPPORTED_OPERATION")  # a worker was lost
                return

    async def _cancel(self) -> None:
        transcript = self.transcript
        try:
            task = await self._asked("POST", f"/tasks/{transcript.task_id}:cancel", {})
        except Refused as e:
            await self._must_have_ended(e, "TASK_NOT_CANCELABLE")
        else:
            self._told(task)
        transcript.canceled = transcript.state == "TASK_STATE_CANCELED"

    async def _must_have_ended(self, refused: Refused, reason: str) -> None:
        """A refusal that only a task that is over may give."""
        self._told(await self._asked("GET", f"/tasks/{self.transcript.task_id}"))
        assert refused.reason == reason, refused
        assert self.transcript.state in ENDED, f"refused, but it goes on: {refused}"

    def _message(self, text: str, *, immediately: bool = False) -> dict[str, Any]:
        transcript = self.transcript
        transcript.sent.append(uuid4().hex)
        message = {"messageId": transcript.sent[-1], "role": "ROLE_USER", "parts": [{"text": text}]}
        message |= {"taskId": transcript.task_id} if transcript.task_id else {"contextId": transcript.context_id}
        return {"message": message, "configuration": {"returnImmediately": immediately}}

    async def _send(self, text: str, *, immediately: bool = False) -> None:
        body = self._message(text, immediately=immediately)
        self._answered(await self._asked("POST", "/message:send", body), immediately=immediately)

    async def _send_once(self, text: str, *, immediately: bool) -> None:
        """To an agent that takes every message for a new one: a client that hears nothing leaves it at that."""
        body = self._message(text, immediately=immediately)
        answer = await self._ask("POST", "/message:send", body)
        if answer is not None:
            self._answered(answer, immediately=immediately)

    def _answered(self, answer: dict[str, Any], *, immediately: bool) -> None:
        transcript = self.transcript
        transcript.accepted.append(transcript.sent[-1])
        if "message" in answer:
            transcript.direct = answer["message"]["parts"][0]["text"]
            return
        self._told(answer["task"])
        assert immediately or transcript.state in ENDED | PAUSED, f"a blocking call came back early: {answer}"

    def _told(self, task: dict[str, Any]) -> None:
        transcript = self.transcript
        assert transcript.task_id in ("", task["id"]), f"two tasks for one scenario: {transcript.task_id}, {task['id']}"
        if transcript.state in ENDED:
            assert transcript.state == task["status"]["state"], (
                f"an end that changed: {transcript.state}, {task['status']}"
            )
        transcript.task_id, transcript.state = task["id"], task["status"]["state"]

    async def _asked(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """The answer, of whichever gateway gives one; asks for ever.

        Raises:
            Refused: it is an error that is final.
        """
        while True:
            answer = await self._ask(method, path, body)
            if answer is not None:
                return answer
            await asyncio.sleep(0.3)

    async def _ask(self, method: str, path: str, body: Any) -> dict[str, Any] | None:
        try:
            url = f"{self._next_url()}{path}"
            answer = await self._http.request(method, url, json=body, headers=HEADERS, timeout=TIMEOUT)
        except httpx.TransportError as e:
            self._heard[f"{method}: {type(e).__name__}"] += 1
            return None
        self._heard[f"{method}: {answer.status_code}"] += 1
        if answer.status_code == 200:
            found: dict[str, Any] = answer.json()
            return found
        return self._refusal(answer.status_code, answer.text)

    def _refusal(self, status: int, text: str) -> None:
        """Nothing if it may be tried again."""
        try:
            error = json.loads(text)["error"]
        except (ValueError, KeyError):
            raise AssertionError(f"no clean error: {status} {text}") from None
        if status not in (429, 503):  # 429: the store is nearly full
            raise Refused(status, error)

    def _next_url(self) -> str:
        self._turn += 1
        return f"{self._urls[self._turn % len(self._urls)]}/agents/{self.transcript.scenario.agent}"

    async def _stream(self, text: str) -> None:
        """Reads its stream to the end, over as many gateways as that takes."""
        transcript = self.transcript
        body = self._message(text)
        while True:
            path, headers, wanted = "/message:stream", HEADERS, body
            if transcript.task_id:
                transcript.resumed += 1
                path, wanted = f"/tasks/{transcript.task_id}:subscribe", None
                headers = {**HEADERS, "Last-Event-ID": self._last_event_id}
            try:
                if await self._read(path, headers, wanted):
                    return
            except httpx.TransportError as e:
                self._heard[f"stream: {type(e).__name__}"] += 1
                if self._stream_is_over():
                    return
            await asyncio.sleep(0.3)

    async def _read(self, path: str, headers: dict[str, str], body: Any) -> bool:
        """Reads one connection's frames; whether the stream is over."""
        request = self._http.stream("POST", f"{self._next_url()}{path}", json=body, headers=headers, timeout=TIMEOUT)
        async with request as response:
            self._heard[f"stream: {response.status_code}"] += 1
            if response.status_code != 200:
                self._refusal(response.status_code, (await response.aread()).decode())
                return False
            async with aclosing(frames(response)) as found:  # type: ignore[type-var]
                async for frame in found:
                    if frame.event == "error":
                        self._heard["stream: error frame"] += 1
                        self._refusal(frame.data["error"]["code"], json.dumps(frame.data))
                        return False
                    self._take(frame)
        assert self._stream_is_over(), f"the stream ended early, behind {self.transcript.seen[-1:]}"
        return True

    def _take(self, frame: Frame) -> None:
        transcript = self.transcript
        transcript.accepted = transcript.sent[:]
        self._last_event_id = frame.id
        transcript.seen.append((frame.version, frame.data))
        match frame.data:
            case {"task": task}:
                self._told(task)
            case {"statusUpdate": update}:
                transcript.task_id, transcript.state = update["taskId"], update["status"]["state"]
            case {"message": message}:
                transcript.direct = message["parts"][0]["text"]

    def _stream_is_over(self) -> bool:
        return bool(self.transcript.direct) or self.transcript.state in ENDED | PAUSED
