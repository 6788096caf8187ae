"""The clients of the chaos test: they send again what they heard no answer to, and note all they are told."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import httpx

from .chaos_plan import Errand
from .clients import Frame, frames

HEADERS = {"A2A-Version": "1.0"}
PATIENCE = httpx.Timeout(15.0, connect=3.0)
"""Seconds without a byte before a client takes its gateway for dead."""

ENDED = {f"TASK_STATE_{state}" for state in ("COMPLETED", "FAILED", "CANCELED", "REJECTED")}
PAUSED = {"TASK_STATE_INPUT_REQUIRED", "TASK_STATE_AUTH_REQUIRED"}


@dataclass
class Visit:
    """What one client did and heard.

    `sent` are its message ids in order, `accepted` those that a gateway has taken; `seen` are the numbered frames of
    its stream. `wrong` are answers that no client should get. `state` is the last it was told of its task.
    """

    errand: Errand
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
    """Runs one errand against gateways at `urls`, beginning with the errand's own."""

    def __init__(self, errand: Errand, urls: list[str], http: httpx.AsyncClient, heard: Counter[str]) -> None:
        self.visit = Visit(errand, context_id=f"errand-{errand.number}")
        self._urls = urls
        self._turn = errand.gateway
        self._http = http
        self._heard = heard
        self._last_event_id = ""

    async def run(self) -> None:
        """The whole errand. What goes wrong is in its visit."""
        visit, errand = self.visit, self.visit.errand
        try:
            if errand.follow_ups:
                await self._talk()
            elif errand.cancel_after is not None:
                await self._send(errand.order.to_text(), immediately=True)
                await asyncio.sleep(errand.cancel_after)
                await self._cancel()
            elif errand.how == "stream":
                await self._stream(errand.order.to_text())
            elif errand.agent == "plain":
                await self._send_once(errand.order.to_text(), immediately=errand.how == "poll")
            else:
                await self._send(errand.order.to_text(), immediately=errand.how == "poll")
            await self._to_its_end()
            visit.done = True
        except Refused as e:
            visit.wrong.append(f"refused: {e}")
        except AssertionError as e:
            visit.wrong.append(f"a client found: {e}")

    async def _to_its_end(self) -> None:
        """Looks until the task has ended, and answers what it asks."""
        visit, answered = self.visit, 0
        while visit.task_id and visit.state not in ENDED:
            if visit.state in PAUSED:
                answered += 1
                assert answered <= visit.errand.order.asks, f"one question too many: {visit.state}"
                await self._send(f"answer-{answered}", immediately=visit.errand.how == "poll")
                continue
            await asyncio.sleep(0.5)
            self._told(await self._asked("GET", f"/tasks/{visit.task_id}"))

    async def _talk(self) -> None:
        """Messages that wait for each other's turns."""
        visit = self.visit
        await self._send("message-0", immediately=True)
        for number in range(1, visit.errand.follow_ups + 1):
            await asyncio.sleep(0.15 * (number % 3))
            last = number == visit.errand.follow_ups
            try:
                await self._send("stop" if last else f"message-{number}", immediately=not last)
            except Refused as e:
                await self._must_have_ended(e, "UNSUPPORTED_OPERATION")  # a worker was lost
                return

    async def _cancel(self) -> None:
        visit = self.visit
        try:
            task = await self._asked("POST", f"/tasks/{visit.task_id}:cancel", {})
        except Refused as e:
            await self._must_have_ended(e, "TASK_NOT_CANCELABLE")
        else:
            self._told(task)
        visit.canceled = visit.state == "TASK_STATE_CANCELED"

    async def _must_have_ended(self, refused: Refused, reason: str) -> None:
        """A refusal that only a task that is over may give."""
        self._told(await self._asked("GET", f"/tasks/{self.visit.task_id}"))
        assert refused.reason == reason, refused
        assert self.visit.state in ENDED, f"refused, but it goes on: {refused}"

    def _message(self, text: str, *, immediately: bool = False) -> dict[str, Any]:
        visit = self.visit
        visit.sent.append(uuid4().hex)
        message = {"messageId": visit.sent[-1], "role": "ROLE_USER", "parts": [{"text": text}]}
        message |= {"taskId": visit.task_id} if visit.task_id else {"contextId": visit.context_id}
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
        visit = self.visit
        visit.accepted.append(visit.sent[-1])
        if "message" in answer:
            visit.direct = answer["message"]["parts"][0]["text"]
            return
        self._told(answer["task"])
        assert immediately or visit.state in ENDED | PAUSED, f"a blocking call came back early: {answer}"

    def _told(self, task: dict[str, Any]) -> None:
        visit = self.visit
        assert visit.task_id in ("", task["id"]), f"two tasks for one errand: {visit.task_id}, {task['id']}"
        if visit.state in ENDED:
            assert visit.state == task["status"]["state"], f"an end that changed: {visit.state}, {task['status']}"
        visit.task_id, visit.state = task["id"], task["status"]["state"]

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
            answer = await self._http.request(method, url, json=body, headers=HEADERS, timeout=PATIENCE)
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
        return f"{self._urls[self._turn % len(self._urls)]}/agents/{self.visit.errand.agent}"

    async def _stream(self, text: str) -> None:
        """Reads its stream to the end, over as many gateways as that takes."""
        visit = self.visit
        body = self._message(text)
        while True:
            path, headers, wanted = "/message:stream", HEADERS, body
            if visit.task_id:
                visit.resumed += 1
                path, wanted = f"/tasks/{visit.task_id}:subscribe", None
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
        request = self._http.stream("POST", f"{self._next_url()}{path}", json=body, headers=headers, timeout=PATIENCE)
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
        assert self._stream_is_over(), f"the stream ended early, behind {self.visit.seen[-1:]}"
        return True

    def _take(self, frame: Frame) -> None:
        visit = self.visit
        visit.accepted = visit.sent[:]
        self._last_event_id = frame.id
        visit.seen.append((frame.version, frame.data))
        match frame.data:
            case {"task": task}:
                self._told(task)
            case {"statusUpdate": update}:
                visit.task_id, visit.state = update["taskId"], update["status"]["state"]
            case {"message": message}:
                visit.direct = message["parts"][0]["text"]

    def _stream_is_over(self) -> bool:
        return bool(self.visit.direct) or self.visit.state in ENDED | PAUSED
