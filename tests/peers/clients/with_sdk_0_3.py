"""Client of a2a-sdk 0.3. It takes the arguments of `with_sdk_1`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import grpc.aio
import httpx
import steps
from a2a.client import A2ACardResolver, Client, ClientConfig, ClientFactory
from a2a.client.errors import A2AClientJSONRPCError
from a2a.types import (
    AgentCard,
    AgentInterface,
    GetTaskPushNotificationConfigParams,
    Message,
    MessageSendConfiguration,
    Part,
    PushNotificationConfig,
    Role,
    Task,
    TaskArtifactUpdateEvent,
    TaskIdParams,
    TaskPushNotificationConfig,
    TaskQueryParams,
    TaskStatus,
    TaskStatusUpdateEvent,
    TextPart,
)
from a2a.utils import get_message_text
from steps import TaskView

TOKEN = "chosen-by-the-client"


def state(status: TaskStatus) -> str:
    return status.state.value.upper().replace("-", "_")


def artifact_text(parts: list[Part]) -> str:
    return "".join(part.root.text for part in parts if isinstance(part.root, TextPart))


def of_task(task: Task) -> TaskView:
    texts = [artifact_text(artifact.parts) for artifact in task.artifacts or []]
    if task.status.message is not None:
        texts.append(get_message_text(task.status.message))
    return TaskView(state(task.status), "".join(texts), task.id, task.context_id)


def of_event(event: object) -> TaskView:
    assert isinstance(event, tuple), event
    task, update = event
    if isinstance(update, TaskArtifactUpdateEvent):
        return TaskView("", artifact_text(update.artifact.parts))
    if isinstance(update, TaskStatusUpdateEvent):
        return TaskView(state(update.status), get_message_text(update.status.message) if update.status.message else "")
    return of_task(task)


class Sdk:
    def __init__(self, card: AgentCard, binding: str, http: httpx.AsyncClient) -> None:
        self._card, self._binding, self._http = card, binding, http
        self._whole, self._streaming = self._create(False), self._create(True)

    def _create(self, streaming: bool, **options: Any) -> Client:
        config = ClientConfig(
            streaming=streaming,
            httpx_client=self._http,
            grpc_channel_factory=grpc.aio.insecure_channel,
            supported_transports=[self._binding],
            **options,
        )
        return ClientFactory(config).create(self._card)

    async def card(self) -> list[object]:
        return [self._card.name, self._card.capabilities.streaming, self._card.capabilities.push_notifications]

    def _message(self, text: str, answers: TaskView | None = None) -> Message:
        message = Message(message_id=uuid4().hex, role=Role.user, parts=[Part(root=TextPart(text=text))])
        if answers is not None:
            message.task_id, message.context_id = answers.task_id, answers.context_id
        return message

    async def send(self, text: str, answers: TaskView | None = None, webhook: str = "", wait: bool = True) -> TaskView:
        client = self._whole
        if webhook:  # this client converts the config of a single call to a dict, which fails over HTTP+JSON and gRPC
            client = self._create(False, push_notification_configs=[PushNotificationConfig(url=webhook, token=TOKEN)])
        configuration = MessageSendConfiguration(blocking=wait)
        [(task, _)] = [e async for e in client.send_message(self._message(text, answers), configuration=configuration)]
        return of_task(task)

    async def begin(self, text: str) -> TaskView:
        return await self.send(text, wait=False)

    async def stream(self, text: str) -> AsyncIterator[TaskView]:
        async for event in self._streaming.send_message(self._message(text)):
            yield of_event(event)

    async def get(self, task_id: str) -> TaskView:
        return of_task(await self._whole.get_task(TaskQueryParams(id=task_id)))

    async def cancel(self, task_id: str) -> TaskView:
        return of_task(await self._whole.cancel_task(TaskIdParams(id=task_id)))

    async def subscribe(self, task_id: str) -> AsyncIterator[TaskView]:
        async for event in self._streaming.resubscribe(TaskIdParams(id=task_id)):
            yield of_event(event)

    async def set_webhook(self, task_id: str, url: str) -> None:
        config = PushNotificationConfig(id="c1", url=url, token=TOKEN)
        await self._whole.set_task_callback(
            TaskPushNotificationConfig(task_id=task_id, push_notification_config=config)
        )

    async def webhooks(self, task_id: str) -> list[str]:
        """Return the webhook that `set_webhook` has set, because this client cannot list webhooks."""
        request = GetTaskPushNotificationConfigParams(id=task_id, push_notification_config_id="c1")
        return [(await self._whole.get_task_callback(request)).push_notification_config.url]

    def error(self, error: Exception) -> str:
        if isinstance(error, A2AClientJSONRPCError):
            return str(error.error.code)
        if isinstance(error, grpc.aio.AioRpcError):
            return error.code().name
        return str(error.status_code)


@asynccontextmanager
async def client(address: str, binding: str, *ports: str) -> AsyncIterator[Sdk]:
    """Yield clients of the gateway at `address`. `ports` contains pairs of an HTTP port and a gRPC port, including the
    gateway's pair."""
    async with httpx.AsyncClient(timeout=60) as http:
        card = await A2ACardResolver(http, address).get_agent_card()
        for http_port, grpc_port in zip(ports[::2], ports[1::2], strict=True):
            if address.endswith(f":{http_port}"):
                interface = AgentInterface(url=f"127.0.0.1:{grpc_port}", transport="GRPC")
                card.additional_interfaces = [*(card.additional_interfaces or []), interface]
        yield Sdk(card, binding, http)


if __name__ == "__main__":
    steps.main(client)
