"""Tenant isolation of each operation over each binding, for the owner and for other callers.

To other callers, the task looks like a missing task. The response differs only in the id, and the store does not
change.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
import redis

from tests.support.clients.bindings import ServedFleet, message_json, serve_fleet
from tests.support.clients.credentials import AUDIENCE, ISSUER, bearer, rsa_key, token
from tests.support.clients.issuer import Issuer, running_issuer
from tests.support.clients.operation_calls import Answer, ask
from tests.support.receivers.webhooks import SECRET

WEBHOOK = {"id": "hook", "url": "https://127.0.0.1:9/hook"}
BINDINGS = ("JSONRPC", "HTTP+JSON", "GRPC", "JSONRPC 0.3")
STRANGERS = {"owner": ("bob", "acme"), "tenant": ("alice", "beta")}
"""Callers and tenants that request Alice's task in the tenant "acme": a different owner, and Alice in a different
tenant."""


def task_params(operation: str, task_id: str) -> dict[str, Any]:
    """Return the parameters of `operation` for the task `task_id`."""
    match operation:
        case "SendMessage" | "SendStreamingMessage":
            return message_json("7", taskId=task_id)
        case "CreateTaskPushNotificationConfig":
            return {"taskId": task_id, **WEBHOOK}
        case "GetTaskPushNotificationConfig" | "DeleteTaskPushNotificationConfig":
            return {"taskId": task_id, "id": WEBHOOK["id"]}
        case "ListTaskPushNotificationConfigs":
            return {"taskId": task_id}
        case _:
            return {"id": task_id}


OPERATIONS = (
    "GetTask",
    "CreateTaskPushNotificationConfig",
    "GetTaskPushNotificationConfig",
    "ListTaskPushNotificationConfigs",
    "DeleteTaskPushNotificationConfig",
    "SubscribeToTask",
    "SendMessage",
    "SendStreamingMessage",
    "CancelTask",
)
"""Operations that name a task."""


class Matrix:
    """Gateway, worker and token issuer, for requests by several callers for Alice's tasks."""

    def __init__(self, served_fleet: ServedFleet, issuer: Issuer) -> None:
        self.served_fleet = served_fleet
        self.issuer = issuer
        self.store = redis.Redis.from_url(served_fleet.fleet.redis.store_url)

    async def ask(
        self, binding: str, operation: str, params: dict[str, Any], caller: str, tenant: str, agent: str = "ask"
    ) -> Answer:
        """Call an operation as `caller`, or anonymously if `caller` is "", and return the response."""
        tenants = {"alice": ["", "acme", "beta"], "bob": ["", "acme"], "carol": ["beta"]}
        headers = self.issuer.headers(caller, tenants=tenants[caller]) if caller else {}
        return await ask(self.served_fleet.gateway, binding, operation, params, tenant, agent, headers)

    async def create_waiting_task(self, tenant: str = "acme", **fields: Any) -> str:
        """Create a task that Alice owns, that waits for an answer and has a webhook. Return the task's id."""
        response = await self.ask("JSONRPC", "SendMessage", message_json(**fields), "alice", tenant)
        task = response.data["result"]["task"]
        assert task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
        hook = {"taskId": task["id"], **WEBHOOK}
        assert (await self.ask("JSONRPC", "CreateTaskPushNotificationConfig", hook, "alice", tenant)).is_success
        return str(task["id"])

    def stored_values(self) -> dict[bytes, Any]:
        """Return all keys of the store with their values."""
        values: dict[bytes, Any] = {}
        for key in self.store.scan_iter():
            match self.store.type(key):
                case b"hash":
                    values[key] = self.store.hgetall(key)
                case b"list":
                    values[key] = self.store.lrange(key, 0, -1)
                case b"zset":
                    values[key] = self.store.zrange(key, 0, -1, withscores=True)
                case _:
                    values[key] = self.store.dump(key)
        return values


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Matrix]:
    with running_issuer() as issuer:
        settings = {
            "A2A_SECRET_KEY": SECRET,
            "A2A_ALLOW_NETWORKS": "127.0.0.0/8",
            "A2A_AUTH_JWKS_URL": issuer.url,
            "A2A_AUTH_JWT_ALGORITHMS": "RS256",
            "A2A_AUTH_JWT_ISSUER": ISSUER,
            "A2A_AUTH_JWT_AUDIENCE": AUDIENCE,
            "A2A_AUTH_JWT_TENANTS_CLAIM": "tenants",
        }
        with serve_fleet(tmp_path_factory.mktemp("fleet"), pool="threads", concurrency=4, **settings) as served_fleet:
            matrix = Matrix(served_fleet, issuer)
            yield matrix
            matrix.store.close()


def tenant_for(binding: str) -> str:
    """Return the tenant of Alice's tasks for a binding. Protocol 0.3 has no tenants."""
    return "" if "0.3" in binding else "acme"


@pytest.mark.parametrize("binding", BINDINGS)
async def test_an_owner_may_do_everything(matrix: Matrix, binding: str) -> None:
    task_id = await matrix.create_waiting_task(tenant_for(binding))
    for operation in OPERATIONS:
        if operation in ("SendStreamingMessage", "CancelTask"):  # the operation before completed the previous task
            task_id = await matrix.create_waiting_task(tenant_for(binding))

        answer = await matrix.ask(binding, operation, task_params(operation, task_id), "alice", tenant_for(binding))

        assert answer.is_success, (operation, answer)


@pytest.mark.parametrize(
    ("binding", "stranger"), [*((one, who) for one in BINDINGS[:3] for who in STRANGERS), (BINDINGS[3], "owner")]
)
async def test_tasks_of_others_look_like_missing_ones(matrix: Matrix, binding: str, stranger: str) -> None:
    caller, tenant = STRANGERS[stranger]
    tenant = tenant if tenant_for(binding) else ""
    task_id, unknown = await matrix.create_waiting_task(tenant_for(binding)), str(uuid4())
    content_before = matrix.stored_values()
    for operation in OPERATIONS:
        existing_response = await matrix.ask(binding, operation, task_params(operation, task_id), caller, tenant)
        missing_response = await matrix.ask(binding, operation, task_params(operation, unknown), caller, tenant)

        assert not existing_response.is_success, operation
        assert existing_response.without(task_id) == missing_response.without(unknown), operation
        config = operation == "GetTaskPushNotificationConfig"
        assert ("No such push notification config" if config else "Task not found") in existing_response.body, operation
        assert existing_response.status in (404, "NOT_FOUND", 200), operation
        assert matrix.stored_values() == content_before, operation


@pytest.mark.parametrize("binding", BINDINGS)
async def test_anonymous_callers_learn_nothing(matrix: Matrix, binding: str) -> None:
    task_id, unknown = await matrix.create_waiting_task(tenant_for(binding)), str(uuid4())
    content_before = matrix.stored_values()
    answers = {
        await matrix.ask(binding, operation, task_params(operation, known_or_unknown_id), "", tenant)
        for operation in OPERATIONS
        for known_or_unknown_id in (task_id, unknown)
        for tenant in {tenant_for(binding), ""}
    }

    [answer] = answers
    assert answer.status in (401, "UNAUTHENTICATED")
    assert matrix.stored_values() == content_before


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_forbidden_tenant_is_refused_whatever_it_contains(matrix: Matrix, binding: str) -> None:
    task_id, unknown = await matrix.create_waiting_task(tenant_for(binding)), str(uuid4())
    content_before = matrix.stored_values()
    for operation in OPERATIONS:
        existing_response = await matrix.ask(
            binding, operation, task_params(operation, task_id), "carol", tenant_for(binding)
        )
        missing_response = await matrix.ask(
            binding, operation, task_params(operation, unknown), "carol", tenant_for(binding)
        )

        assert existing_response == missing_response, operation
        assert "Not permitted in this tenant" in existing_response.body, operation
        assert existing_response.status in (403, "PERMISSION_DENIED") or "0.3" in binding, operation
        assert matrix.stored_values() == content_before


@pytest.mark.parametrize("stranger", STRANGERS)
@pytest.mark.parametrize("binding", BINDINGS[:3])
async def test_a_context_id_of_another_owner_starts_a_new_context(matrix: Matrix, binding: str, stranger: str) -> None:
    caller, tenant = STRANGERS[stranger]
    context_id, unknown = str(uuid4()), str(uuid4())
    theirs = await matrix.create_waiting_task(contextId=context_id)
    task_before = task_of(await matrix.ask("JSONRPC", "GetTask", {"id": theirs}, "alice", "acme"))

    for operation in ("SendMessage", "SendStreamingMessage"):
        responses = []
        for context in (context_id, unknown):
            response = await matrix.ask(binding, operation, message_json("hi", contextId=context), caller, tenant)
            assert response.is_success, response
            task = task_of(response)
            assert task["contextId"] == context
            assert theirs not in response.body
            task_list = await matrix.ask(binding, "ListTasks", {"contextId": context}, caller, tenant)
            responses.append((sorted(task), len(task["history"]), totals(task_list), theirs in task_list.body))
        assert responses[0] == responses[1]

    assert totals(await matrix.ask(binding, "ListTasks", {"contextId": context_id}, "alice", "acme")) == 1
    assert task_of(await matrix.ask("JSONRPC", "GetTask", {"id": theirs}, "alice", "acme")) == task_before


@pytest.mark.parametrize("binding", BINDINGS[:3])
async def test_a_reference_to_another_owners_task_is_treated_as_unknown(matrix: Matrix, binding: str) -> None:
    response = await matrix.ask("JSONRPC", "SendMessage", message_json(), "alice", "acme", "related")
    theirs, unknown = task_of(response)["id"], str(uuid4())

    async def responses(caller: str, tenant: str, reference: str) -> list[Any]:
        body = message_json(referenceTaskIds=[reference])
        task = task_of(await matrix.ask(binding, "SendMessage", body, caller, tenant, "related"))
        assert task["status"]["state"] == "TASK_STATE_COMPLETED"
        return [part.get("data") for artifact in task.get("artifacts", []) for part in artifact["parts"]]

    assert await responses("alice", "acme", theirs) == [[f"{theirs}: 1"]]
    for caller, tenant in STRANGERS.values():
        assert await responses(caller, tenant, theirs) == await responses(caller, tenant, unknown) == [[]]


@pytest.mark.parametrize("binding", BINDINGS[:3])
async def test_lists_and_the_extended_card_are_each_ones_own(matrix: Matrix, binding: str) -> None:
    task_id = await matrix.create_waiting_task()

    async def lists(caller: str, tenant: str) -> Answer:
        return await matrix.ask(binding, "ListTasks", {}, caller, tenant)

    assert task_id in (await lists("alice", "acme")).body
    for caller, tenant in STRANGERS.values():
        answer = await lists(caller, tenant)
        assert answer.is_success
        assert task_id not in answer.body
    assert (await lists("carol", "acme")).status in (403, "PERMISSION_DENIED")
    assert (await lists("", "acme")).status in (401, "UNAUTHENTICATED")

    async def card(caller: str, tenant: str) -> Answer:
        return await matrix.ask(binding, "GetExtendedAgentCard", {}, caller, tenant, "full")

    assert "full-extended" in (await card("alice", "acme")).body
    assert await card("bob", "acme") == await card("alice", "acme")
    assert (await card("carol", "acme")).status in (403, "PERMISSION_DENIED")
    assert (await card("", "acme")).status in (401, "UNAUTHENTICATED")


@pytest.mark.parametrize("binding", BINDINGS[:3])
async def test_an_outage_of_the_issuer_has_no_effect(matrix: Matrix, binding: str) -> None:
    matrix.issuer.is_down = True
    try:
        forged_headers = bearer(token(rsa_key("made-up"), "RS256", "alice", tenants=[""]))
        response = await ask(matrix.served_fleet.gateway, binding, "ListTasks", {}, "", "ask", forged_headers)
        assert response.status in (401, "UNAUTHENTICATED")
        assert (await matrix.ask(binding, "ListTasks", {}, "alice", "")).is_success
    finally:
        matrix.issuer.is_down = False
    assert 1 <= matrix.issuer.fetch_count < 10, "its keys are cached"


def task_of(answer: Answer) -> dict[str, Any]:
    """Return the task in a response of any operation and binding."""
    result = answer.data.get("result", answer.data)
    task: dict[str, Any] = result.get("task", result)
    return task


def totals(answer: Answer) -> int:
    """Return the total size of a list."""
    return int(answer.data.get("result", answer.data).get("totalSize", 0))
