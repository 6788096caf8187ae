"""Server of fasta2a with a worker that behaves like the sample executor. Arguments: a port and a binding."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import uvicorn
from fasta2a import FastA2A, Skill, Worker
from fasta2a.broker import InMemoryBroker
from fasta2a.schema import Artifact, Message, TaskIdParams, TaskSendParams
from fasta2a.storage import InMemoryStorage


class SampleWorker(Worker[list[Message]]):
    """Worker that counts ("count 3"), works until cancelled ("wait"), raises ("fail"), or echoes.

    It asks no questions, because fasta2a has no messages that answer a task.
    """

    async def run_task(self, params: TaskSendParams) -> None:
        task_id, context_id = params["id"], params["context_id"]
        text = "".join(part.get("text", "") for part in params["message"]["parts"])
        await self.storage.update_task(task_id, state="working")
        await self.publish_status(task_id, context_id, "working")
        match text.split():
            case ["fail"]:
                raise RuntimeError("a secret of the agent")
            case ["wait"]:
                return  # the task stays WORKING, because a worker runs only one task at a time
            case ["count", number]:
                text = ""
                for count in range(int(number)):
                    await asyncio.sleep(0)
                    text += f"{count} "
        artifact = Artifact(artifact_id=uuid4().hex, name="result", parts=[{"text": text}])  # type: ignore[list-item]
        await self.publish_artifact(task_id, context_id, artifact)
        await self.storage.update_task(task_id, state="completed", new_artifacts=[artifact])

    async def cancel_task(self, params: TaskIdParams) -> None:
        task = await self.storage.load_task(params["id"])
        if task is not None and task["status"]["state"] == "working":
            await self.storage.update_task(params["id"], state="canceled")

    def build_message_history(self, history: list[Message]) -> list[Any]:
        return history

    def build_artifacts(self, result: Any) -> list[Artifact]:
        return []


@asynccontextmanager
async def lifespan(app: FastA2A) -> AsyncIterator[None]:
    async with app.task_manager, SampleWorker(broker=broker, storage=storage).run():
        yield


port = int(sys.argv[1])
broker, storage = InMemoryBroker(), InMemoryStorage[list[Message]]()
skills = [Skill(id="sample", name="Sample", description="Counts, waits, fails.", tags=["sample"])]
app = FastA2A(
    storage=storage,
    broker=broker,
    name="Sample Agent",
    url=f"http://127.0.0.1:{port}/",
    skills=skills,
    lifespan=lifespan,
)
uvicorn.run(app, port=port, log_level="warning")
