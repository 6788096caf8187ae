"""Floor of the comparison: a minimal server with Starlette, ``apply_async`` and a Redis list, without checks or A2A.

    uvicorn benchmarks.peers.floor:asgi        and        celery -A benchmarks.peers.floor worker

The difference between this project and the floor is the cost of this project's own code.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4

import redis
import redis.asyncio
from celery import Celery
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

STORE = os.environ.get("A2A_STORE_URL", "redis://127.0.0.1:6379/1")
END = b"end"

app = Celery("floor")
app.conf.task_default_queue = os.environ.get("TEST_QUEUE", "celery")
app.conf.broker_connection_retry_on_startup = True
store = redis.Redis.from_url(STORE)  # connects on first use, after any fork


@app.task(name="floor.echo", ignore_result=True)
def echo(task_id: str) -> None:
    """Write the text of the message as an event."""
    text = json.loads(store.get(f"floor:{task_id}"))["message"]["parts"][0]["text"]  # type: ignore[arg-type]
    write(task_id, [json.dumps({"artifactUpdate": text}).encode(), END])


@app.task(name="floor.count", ignore_result=True)
def count(task_id: str) -> None:
    """Write as many chunks as the message requests, in batches of this project's maximum batch size."""
    chunks = int(json.loads(store.get(f"floor:{task_id}"))["message"]["parts"][0]["text"])  # type: ignore[arg-type]
    for first in range(0, chunks, 64):
        part = range(first, min(first + 64, chunks))
        write(task_id, [json.dumps({"artifactUpdate": f"{number} "}).encode() for number in part])
    write(task_id, [END])


@app.task(name="floor.silent", ignore_result=True)
def silent(task_id: str) -> None:
    """Write nothing, so that the stream stays idle."""


def write(task_id: str, events: list[bytes]) -> None:
    """Append events to the log and notify the gateway."""
    with store.pipeline(transaction=False) as pipe:
        pipe.rpush(f"floor:{task_id}:log", *events)
        pipe.expire(f"floor:{task_id}:log", 60)
        pipe.publish("floor:wake", task_id)
        pipe.execute()


class Gateway:
    """Reader of all logs. A single connection receives the notifications of all tasks."""

    def __init__(self) -> None:
        self.redis = redis.asyncio.Redis.from_url(STORE)
        self.signals: dict[bytes, asyncio.Event] = {}

    async def listen(self) -> None:
        async with self.redis.pubsub() as pubsub:
            await pubsub.subscribe("floor:wake")
            async for message in pubsub.listen():
                if message["type"] == "message" and message["data"] in self.signals:
                    self.signals[message["data"]].set()

    async def events(self, name: str, body: bytes) -> AsyncIterator[bytes]:
        """Run the task and yield its events."""
        task_id = uuid4().hex
        signal = self.signals[task_id.encode()] = asyncio.Event()
        try:
            await self.redis.set(f"floor:{task_id}", body, ex=60)
            await asyncio.to_thread(app.tasks[f"floor.{name}"].apply_async, (task_id,))
            read = 0
            while True:
                await signal.wait()
                signal.clear()
                for event in await self.redis.lrange(f"floor:{task_id}:log", read, -1):
                    if event == END:
                        return
                    read += 1
                    yield event
        finally:
            del self.signals[task_id.encode()]


gateway = Gateway()


async def send(request: Request) -> Response:
    events = [event async for event in gateway.events(request.path_params["name"], await request.body())]
    return Response(b'{"task":[' + b",".join(events) + b'],"state":"COMPLETED"}', media_type="application/json")


async def stream(request: Request) -> Response:
    body = await request.body()

    async def frames() -> AsyncIterator[bytes]:
        async for event in gateway.events(request.path_params["name"], body):
            yield b"data: " + event + b"\n\n"

    return StreamingResponse(frames(), media_type="text/event-stream")


@asynccontextmanager
async def lifespan(_: Starlette) -> AsyncIterator[None]:
    listening = asyncio.create_task(gateway.listen())
    yield
    listening.cancel()


asgi = Starlette(
    routes=[
        Route("/agents/{name}/message:send", send, methods=["POST"]),
        Route("/agents/{name}/message:stream", stream, methods=["POST"]),
    ],
    lifespan=lifespan,
)
