"""Client of a2a-sdk 1.x. Arguments: two gateway URLs, a webhook URL, a binding, and the gateways' ports."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4

import grpc.aio
import httpx
import steps
from a2a.client import A2ACardResolver, Client, ClientConfig, ClientFactory
from a2a.helpers import get_artifact_text, get_message_text
from a2a.types import (
    AgentCard,
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTasksRequest,
    Message,
    Part,
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    Task,
    TaskPushNotificationConfig,
    TaskState,
    TaskStatus,
)
from steps import TaskView


def state(status: TaskStatus) -> str:
    return TaskState.Name(status.state).removeprefix("TASK_STATE_")


def of_task(task: Task) -> TaskView:
    texts = [get_artifact_text(artifact, delimiter="") for artifact in task.artifacts]
    if task.status.HasField("message"):
        texts.append(get_message_text(task.status.message))
    return TaskView(state(task.status), "".join(texts), task.id, task.context_id)


def of_event(event: StreamResponse) -> TaskView:
    if event.HasField("task"):
        return of_task(event.task)
    if event.HasField("artifact_update"):
        return TaskView("", get_artifact_text(event.artifact_update.artifact, delimiter=""))
    return TaskView(state(event.status_update.status), get_message_text(event.status_update.status.message))


class Sdk:
    def __init__(self, card: AgentCard, binding: str, http: httpx.AsyncClient) -> None:
        self._card, self._binding, self._http = card, binding, http
        self._whole, self._streaming = self._create(False), self._create(True)

    def _create(self, streaming: bool) -> Client:
        config = ClientConfig(
            streaming=streaming,
            httpx_client=self._http,
            grpc_channel_factory=grpc.aio.insecure_channel,
            supported_protocol_bindings=[self._binding],
        )
        return ClientFactory(config).create(self._card)

    async def card(self) -> list[object]:
        return [self._card.name, self._card.capabilities.streaming, self._card.capabilities.push_notifications]

    async def send(self, text: str, answers: TaskView | None = None, webhook: str = "", wait: bool = True) -> TaskView:
        message = Message(message_id=uuid4().hex, role=Role.ROLE_USER, parts=[Part(text=text)])
        if answers is not None:
            message.task_id, message.context_id = answers.task_id, answers.context_id
        configuration = SendMessageConfiguration(return_immediately=not wait)
        if webhook:
            configuration.task_push_notification_config.url = webhook
            configuration.task_push_notification_config.token = "chosen-by-the-client"
        request = SendMessageRequest(message=message, configuration=configuration)
        [response] = [response async for response in self._whole.send_message(request)]
        return of_task(response.task)

    async def begin(self, text: str) -> TaskView:
        return await self.send(text, wait=False)

    async def stream(self, text: str) -> AsyncIterator[TaskView]:
        message = Message(message_id=uuid4().hex, role=Role.ROLE_USER, parts=[Part(text=text)])
        async for event in self._streaming.send_message(SendMessageRequest(message=message)):
            yield of_event(event)

    async def get(self, task_id: str) -> TaskView:
        return of_task(await self._whole.get_task(GetTaskRequest(id=task_id)))

    async def cancel(self, task_id: str) -> TaskView:
        return of_task(await self._whole.cancel_task(CancelTaskRequest(id=task_id)))

    async def subscribe(self, task_id: str) -> AsyncIterator[TaskView]:
        async for event in self._streaming.subscribe(SubscribeToTaskRequest(id=task_id)):
            yield of_event(event)

    async def tasks(self, context_id: str) -> list[str]:
        return [task.id for task in (await self._whole.list_tasks(ListTasksRequest(context_id=context_id))).tasks]

    async def set_webhook(self, task_id: str, url: str) -> None:
        config = TaskPushNotificationConfig(task_id=task_id, id="c1", url=url, token="chosen-by-the-client")
        await self._whole.create_task_push_notification_config(config)

    async def webhooks(self, task_id: str) -> list[str]:
        request = ListTaskPushNotificationConfigsRequest(task_id=task_id)
        return [config.url for config in (await self._whole.list_task_push_notification_configs(request)).configs]

    async def delete_webhook(self, task_id: str) -> None:
        request = DeleteTaskPushNotificationConfigRequest(task_id=task_id, id="c1")
        await self._whole.delete_task_push_notification_config(request)

    def error(self, error: Exception) -> str:
        return type(error).__name__.removesuffix("Error")


@asynccontextmanager
async def client(address: str, binding: str, *ports: str) -> AsyncIterator[Sdk]:
    """Yield clients of the gateway at `address`. `ports` contains pairs of an HTTP port and a gRPC port, including the
    gateway's pair."""
    async with httpx.AsyncClient(timeout=60) as http:
        card = await A2ACardResolver(http, address).get_agent_card()
        for http_port, grpc_port in zip(ports[::2], ports[1::2], strict=True):
            if address.endswith(f":{http_port}"):
                card.supported_interfaces.add(
                    url=f"127.0.0.1:{grpc_port}", protocol_binding="GRPC", protocol_version="1.0"
                )
        yield Sdk(card, binding, http)


if __name__ == "__main__":
    steps.main(client)
