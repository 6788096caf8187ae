"""Push-notification configs: the four operations, and configs in messages, over each binding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import redis
from a2a.types import (
    AuthenticationInfo,
    DeleteTaskPushNotificationConfigRequest,
    GetExtendedAgentCardRequest,
    GetTaskPushNotificationConfigRequest,
    ListTaskPushNotificationConfigsRequest,
    SendMessageRequest,
    Task,
    TaskPushNotificationConfig,
)
from a2a.utils.errors import TaskNotFoundError
from google.protobuf.json_format import ParseDict
from prometheus_client.parser import text_string_to_metric_families

from a2a_celery.features.webhooks.config_section import MAX_PUSH_CONFIGS
from a2a_celery.store import Keys
from tests.support.clients.bindings import (
    BINDINGS,
    ServedFleet,
    card_of,
    message_json,
    rest,
    rpc,
    sdk_client,
    serve_fleet,
    service,
)
from tests.support.clients.credentials import API_KEYS, KEY_OF_ANN
from tests.support.clients.faults import fault
from tests.support.waiting import LIMIT

HOOK = "http://127.0.0.1:9/hook"
CONFIGS = "/pushNotificationConfigs"
SECRET = "s3cret-t0ken"
SECRET_KEY = "0123456789abcdef0123456789abcdef"
CREDENTIALS = "s3cret-cr3dentials"


@pytest.fixture(scope="module")
def served_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedFleet]:
    """Fleet without a watcher, so that nothing is posted."""
    secrets = {"A2A_SECRET_KEY": SECRET_KEY, "A2A_ALLOW_NETWORKS": "127.0.0.0/8"}
    with serve_fleet(tmp_path_factory.mktemp("fleet"), pool="threads", concurrency=8, **secrets) as served_fleet:
        yield served_fleet


@pytest.fixture(scope="module")
def task_id(served_fleet: ServedFleet) -> str:
    """Id of a task that waits for an answer."""
    task = rpc(served_fleet.gateway, "SendMessage", message_json("hello"), agent="ask")["result"]["task"]
    assert task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    found_id: str = task["id"]
    return found_id


def config(task_id: str, config_id: str = "") -> TaskPushNotificationConfig:
    authentication = AuthenticationInfo(scheme="Bearer", credentials=CREDENTIALS)
    return TaskPushNotificationConfig(
        id=config_id, task_id=task_id, url=HOOK, token=SECRET, authentication=authentication
    )


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_config_is_made_read_listed_and_deleted(served_fleet: ServedFleet, task_id: str, binding: str) -> None:
    async with sdk_client(served_fleet.gateway, "ask", binding) as client:
        created_config = await client.create_task_push_notification_config(config(task_id))
        named_config = await client.create_task_push_notification_config(config(task_id, f"mine {binding}"))
        get = GetTaskPushNotificationConfigRequest(task_id=task_id, id=created_config.id)
        list_request = ListTaskPushNotificationConfigsRequest(task_id=task_id)

        assert created_config.id
        assert (created_config.task_id, created_config.url, created_config.authentication.scheme) == (
            task_id,
            HOOK,
            "Bearer",
        )
        assert await client.get_task_push_notification_config(get) == created_config
        config_list = await client.list_task_push_notification_configs(list_request)
        assert created_config in config_list.configs
        assert named_config in config_list.configs
        assert not config_list.next_page_token
        assert SECRET not in str(config_list)
        assert CREDENTIALS not in f"{created_config}{config_list}"

        delete = DeleteTaskPushNotificationConfigRequest(task_id=task_id, id=created_config.id)
        await client.delete_task_push_notification_config(delete)
        await client.delete_task_push_notification_config(delete)  # a repeated deletion has no effect
        assert created_config not in (await client.list_task_push_notification_configs(list_request)).configs
        with pytest.raises(TaskNotFoundError):
            await client.get_task_push_notification_config(get)
        await client.delete_task_push_notification_config(
            DeleteTaskPushNotificationConfigRequest(task_id=task_id, id=named_config.id)
        )


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_config_that_comes_with_a_message_is_the_tasks(served_fleet: ServedFleet, binding: str) -> None:
    async with sdk_client(served_fleet.gateway, "echo", binding, streaming=False) as client:
        body = message_json("hello") | {"configuration": {"taskPushNotificationConfig": {"url": HOOK, "id": "mine"}}}
        task = Task()
        async for answer in client.send_message(ParseDict(body, SendMessageRequest())):
            task = answer.task

        stored_config = await client.get_task_push_notification_config(
            GetTaskPushNotificationConfigRequest(task_id=task.id, id="mine")
        )
        assert (stored_config.id, stored_config.task_id, stored_config.url) == ("mine", task.id, HOOK)


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
async def test_a_client_of_0_3_sets_a_config_as_well(served_fleet: ServedFleet, task_id: str, binding: str) -> None:
    async with sdk_client(served_fleet.gateway, "ask", binding, version="0.3") as client:
        created_config = await client.create_task_push_notification_config(config(task_id, f"old {binding}"))

        assert (created_config.id, created_config.url) == (f"old {binding}", HOOK)


def test_a_json_rpc_client_of_0_3_reads_and_deletes_its_only_config(served_fleet: ServedFleet) -> None:
    task = rpc(served_fleet.gateway, "SendMessage", message_json("hello"), agent="ask")["result"]["task"]

    def call(operation: str, **params: Any) -> dict[str, Any]:
        method = f"tasks/pushNotificationConfig/{operation}"
        return rpc(served_fleet.gateway, method, params, agent="ask", A2A_Version="0.3")

    hook = {"id": "mine", "url": HOOK}
    call("set", taskId=task["id"], pushNotificationConfig=hook)
    assert call("get", id=task["id"])["result"]["pushNotificationConfig"] == hook
    assert call("delete", id=task["id"], pushNotificationConfigId="mine") == {"jsonrpc": "2.0", "id": 1, "result": None}
    for task_id in (task["id"], "nobody"):
        assert call("get", id=task_id)["error"]["code"] == -32001


def test_a_message_to_a_task_adds_a_config_and_another_callers_task_has_none(served_fleet: ServedFleet) -> None:
    task = rpc(served_fleet.gateway, "SendMessage", message_json("hello"), agent="ask")["result"]["task"]
    hook = {"configuration": {"taskPushNotificationConfig": {"url": HOOK}}}
    rpc(served_fleet.gateway, "SendMessage", message_json("blue", taskId=task["id"]) | hook, agent="ask")

    config_list = rpc(served_fleet.gateway, "ListTaskPushNotificationConfigs", {"taskId": task["id"]}, agent="ask")
    other_agent_list = rpc(
        served_fleet.gateway, "ListTaskPushNotificationConfigs", {"taskId": task["id"]}, agent="echo"
    )

    assert len(config_list["result"]["configs"]) == 1
    assert other_agent_list["error"]["code"] == -32001


REFUSED = [
    ("http://8.8.8.8/hook", "must begin with https://"),
    ("https://10.0.0.1/hook", "must have a public host"),
    ("https://169.254.169.254/latest/meta-data", "must have a public host"),
    ("https://[::ffff:10.0.0.1]/hook", "must have a public host"),
    ("https://0x0a000001/", "must have a public host"),
    ("https://012.0.0.1/", "must have a public host"),
    ("https://167772161/", "must have a public host"),
    ("https://user:password@example.com/", "must contain no user or password"),
    ("https://example.com:22/", "port 22 is not allowed for webhooks"),
    ("https://example.com/\r\nX: y", "must contain no spaces, line breaks"),
    ("ftp://example.com/", "must begin with https://"),
    ("", "is missing"),
]


@pytest.mark.parametrize(("url", "error"), REFUSED, ids=lambda value: repr(value)[:30])
@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_forbidden_url_is_refused_with_the_reason(
    served_fleet: ServedFleet, task_id: str, binding: str, url: str, error: str
) -> None:
    params = {"taskId": task_id, "url": url}
    create_fault = await fault(served_fleet.gateway, binding, "CreateTaskPushNotificationConfig", params, agent="ask")
    body = message_json("hello") | {"configuration": {"taskPushNotificationConfig": {"url": url}}}
    send_fault = await fault(served_fleet.gateway, binding, "SendMessage", body, agent="echo")

    assert create_fault.reason == send_fault.reason == "INVALID_PARAMS"
    if url:  # the SDK detects a missing required field
        assert create_fault.fields["url"].startswith(error)
        assert send_fault.fields["configuration.task_push_notification_config.url"].startswith(error)


@pytest.mark.parametrize("binding", BINDINGS)
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("token", "two\r\nlines"),
        ("authentication", {"scheme": "Bearer", "credentials": "x\r\nHost: y"}),
        ("authentication", {"scheme": "no scheme", "credentials": "x"}),
        ("id", "x" * 300),
        ("id", "two\nlines"),
    ],
    ids=lambda value: str(value)[:20],
)
async def test_an_invalid_header_is_refused(
    served_fleet: ServedFleet, task_id: str, binding: str, field: str, value: Any
) -> None:
    params = {"taskId": task_id, "url": HOOK, field: value}

    received_fault = await fault(served_fleet.gateway, binding, "CreateTaskPushNotificationConfig", params, agent="ask")

    assert received_fault.reason == "INVALID_PARAMS"
    assert next(iter(received_fault.fields)).startswith(field)


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_task_has_so_many_configs_and_no_more(served_fleet: ServedFleet, binding: str) -> None:
    task = rpc(served_fleet.gateway, "SendMessage", message_json("hello"), agent="ask")["result"]["task"]
    for number in range(MAX_PUSH_CONFIGS):
        body = {"url": HOOK, "id": f"{number}"}
        assert rest(
            served_fleet.gateway, "POST", f"/tasks/{task['id']}/pushNotificationConfigs", body, agent="ask"
        ).is_success

    params = {"taskId": task["id"], "url": HOOK}
    create_fault = await fault(served_fleet.gateway, binding, "CreateTaskPushNotificationConfig", params, agent="ask")
    body = message_json("blue", taskId=task["id"]) | {"configuration": {"taskPushNotificationConfig": {"url": HOOK}}}
    send_fault = await fault(served_fleet.gateway, binding, "SendMessage", body, agent="ask")

    assert create_fault.reason == send_fault.reason == "UNSUPPORTED_OPERATION"
    replacement = {"url": f"{HOOK}/again", "id": "3"}  # replaces the config with this id
    assert rest(served_fleet.gateway, "POST", f"/tasks/{task['id']}{CONFIGS}", replacement, agent="ask").is_success


@pytest.mark.parametrize("binding", BINDINGS)
async def test_configs_come_in_pages(served_fleet: ServedFleet, binding: str) -> None:
    task = rpc(served_fleet.gateway, "SendMessage", message_json("hello"), agent="ask")["result"]["task"]
    for name in ("c", "a", "b"):
        body = {"url": HOOK, "id": name}
        assert rest(
            served_fleet.gateway, "POST", f"/tasks/{task['id']}/pushNotificationConfigs", body, agent="ask"
        ).is_success
    pages, token = [], ""

    async with sdk_client(served_fleet.gateway, "ask", binding) as client:
        while not pages or token:
            list_request = ListTaskPushNotificationConfigsRequest(task_id=task["id"], page_size=2, page_token=token)
            page = await client.list_task_push_notification_configs(list_request)
            pages.append([config.id for config in page.configs])
            token = page.next_page_token

    assert pages == [["a", "b"], ["c"]]
    params = {"taskId": task["id"], "pageSize": -1}
    received_fault = await fault(served_fleet.gateway, binding, "ListTaskPushNotificationConfigs", params, agent="ask")
    assert list(received_fault.fields) == ["page_size"]


@pytest.mark.parametrize("binding", BINDINGS)
async def test_an_unknown_task_has_no_configs(served_fleet: ServedFleet, binding: str) -> None:
    for method, params in (
        ("CreateTaskPushNotificationConfig", {"taskId": "nobody", "url": HOOK}),
        ("GetTaskPushNotificationConfig", {"taskId": "nobody", "id": "x"}),
        ("ListTaskPushNotificationConfigs", {"taskId": "nobody"}),
        ("DeleteTaskPushNotificationConfig", {"taskId": "nobody", "id": "x"}),
    ):
        assert (await fault(served_fleet.gateway, binding, method, params, agent="echo")).reason == "TASK_NOT_FOUND", (
            method
        )


@pytest.mark.parametrize("binding", BINDINGS)
async def test_an_agent_without_push_notifications_refuses_each_operation(
    served_fleet: ServedFleet, binding: str
) -> None:
    for method, params in (
        ("CreateTaskPushNotificationConfig", {"taskId": "nobody", "url": HOOK}),
        ("GetTaskPushNotificationConfig", {"taskId": "nobody", "id": "x"}),
        ("ListTaskPushNotificationConfigs", {"taskId": "nobody"}),
        ("DeleteTaskPushNotificationConfig", {"taskId": "nobody", "id": "x"}),
        ("SendMessage", message_json() | {"configuration": {"taskPushNotificationConfig": {"url": HOOK}}}),
    ):
        received_fault = await fault(served_fleet.gateway, binding, method, params, agent="quiet")
        assert received_fault.reason == "PUSH_NOTIFICATION_NOT_SUPPORTED", method


def test_a_tenant_is_not_stored_with_a_config(served_fleet: ServedFleet) -> None:
    """The client could choose a very long tenant, and the task's scope contains the tenant already."""
    config = {"url": HOOK, "id": "mine", "tenant": "x" * 100_000}
    body = message_json("hello") | {"configuration": {"taskPushNotificationConfig": config}}
    task = rpc(served_fleet.gateway, "SendMessage", body, agent="ask")["result"]["task"]

    with redis.Redis.from_url(served_fleet.fleet.redis.store_url) as store:
        stored_configs = store.hgetall(Keys("a2a").task(task["id"]).cursors)

    assert stored_configs
    assert max(map(len, stored_configs.values())) < 2000


async def test_an_extended_card_has_the_push_capability_of_the_public_one(served_fleet: ServedFleet) -> None:
    gateway = served_fleet.fleet.gateway(**API_KEYS)
    async with sdk_client(gateway, "full") as client:
        request = GetExtendedAgentCardRequest()
        card = await client.get_extended_agent_card(request, context=service(**KEY_OF_ANN))

    assert card.capabilities.push_notifications


async def test_the_cards_say_what_there_is(served_fleet: ServedFleet) -> None:
    assert (await card_of(served_fleet.gateway, "echo")).capabilities.push_notifications
    assert not (await card_of(served_fleet.gateway, "quiet")).capabilities.push_notifications


def test_unknown_events_are_refused(served_fleet: ServedFleet, task_id: str) -> None:
    path = f"/tasks/{task_id}{CONFIGS}"

    answer = rest(served_fleet.gateway, "POST", path, {"url": HOOK}, agent="ask", A2A_Push_Events="status, everything")

    assert answer.status_code == 400
    assert "status, terminal, artifacts" in answer.text


def test_metrics_have_the_state_of_webhooks(served_fleet: ServedFleet) -> None:
    task = rpc(served_fleet.gateway, "SendMessage", message_json("hello"), agent="ask")["result"]["task"]
    hook = {"configuration": {"taskPushNotificationConfig": {"url": HOOK}}}
    rpc(served_fleet.gateway, "SendMessage", message_json("blue", taskId=task["id"]) | hook, agent="ask")

    text = httpx.get(f"{served_fleet.url}/metrics", timeout=LIMIT)

    assert text.headers["content-type"].startswith("text/plain; version=")
    metrics = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text.text)
        for sample in family.samples
    }
    assert metrics["a2a_webhook_posts_total", "delivered"] == 0
    assert metrics["a2a_webhooks", "waiting"] >= 1
    assert metrics["a2a_webhooks", "dead"] == 0
