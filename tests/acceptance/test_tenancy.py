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

from tests.support.asking import Answer, ask
from tests.support.clients import Served, message_json, serving
from tests.support.credentials import AUDIENCE, ISSUER, bearer, rsa_key, token
from tests.support.issuer import Issuer, issuing
from tests.support.webhooks import SECRET

WEBHOOK = {"id": "hook", "url": "https://127.0.0.1:9/hook"}
BINDINGS = ("JSONRPC", "HTTP+JSON", "GRPC", "JSONRPC 0.3")
STRANGERS = {"owner": ("bob", "acme"), "tenant": ("alice", "beta")}
"""Callers and tenants that request alice's task in the tenant acme: another owner, and alice in another tenant."""


def of_task(operation: str, task_id: str) -> dict[str, Any]:
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
    """Gateway, worker and token issuer. Callers request tasks of alice."""

    def __init__(self, served: Served, issuer: Issuer) -> None:
        self.served = served
        self.issuer = issuer
        self.store = redis.Redis.from_url(served.fleet.redis.store_url)

    async def ask(
        self, binding: str, operation: str, params: dict[str, Any], who: str, tenant: str, agent: str = "ask"
    ) -> Answer:
        """Call an operation as the caller `who`, or anonymously if `who` is "", and return the response."""
        tenants = {"alice": ["", "acme", "beta"], "bob": ["", "acme"], "carol": ["beta"]}
        headers = self.issuer.headers(who, tenants=tenants[who]) if who else {}
        return await ask(self.served.gateway, binding, operation, params, tenant, agent, headers)

    async def waiting(self, tenant: str = "acme", **fields: Any) -> str:
        """Create a task of alice that waits for an answer and has a webhook. Return the task's id."""
        sent = await self.ask("JSONRPC", "SendMessage", message_json(**fields), "alice", tenant)
        task = sent.data["result"]["task"]
        assert task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
        hook = {"taskId": task["id"], **WEBHOOK}
        assert (await self.ask("JSONRPC", "CreateTaskPushNotificationConfig", hook, "alice", tenant)).is_success
        return str(task["id"])

    def stored(self) -> dict[bytes, Any]:
        """Return all keys of the store with their values."""
        found: dict[bytes, Any] = {}
        for key in self.store.scan_iter():
            match self.store.type(key):
                case b"hash":
                    found[key] = self.store.hgetall(key)
                case b"list":
                    found[key] = self.store.lrange(key, 0, -1)
                case b"zset":
                    found[key] = self.store.zrange(key, 0, -1, withscores=True)
                case _:
                    found[key] = self.store.dump(key)
        return found


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Matrix]:
    with issuing() as issuer:
        settings = {
            "A2A_SECRET_KEY": SECRET,
            "A2A_ALLOW_NETWORKS": "127.0.0.0/8",
            "A2A_AUTH_JWKS_URL": issuer.url,
            "A2A_AUTH_JWT_ALGORITHMS": "RS256",
            "A2A_AUTH_JWT_ISSUER": ISSUER,
            "A2A_AUTH_JWT_AUDIENCE": AUDIENCE,
            "A2A_AUTH_JWT_TENANTS_CLAIM": "tenants",
        }
        with serving(tmp_path_factory.mktemp("fleet"), pool="threads", concurrency=4, **settings) as served:
            matrix = Matrix(served, issuer)
            yield matrix
            matrix.store.close()


def where(binding: str) -> str:
    """Return the tenant of alice's tasks for a binding. Protocol 0.3 has no tenants."""
    return "" if "0.3" in binding else "acme"


@pytest.mark.parametrize("binding", BINDINGS)
async def test_an_owner_may_do_everything(matrix: Matrix, binding: str) -> None:
    task_id = await matrix.waiting(where(binding))
    for operation in OPERATIONS:
        if operation in ("SendStreamingMessage", "CancelTask"):  # the operation before completed the previous task
            task_id = await matrix.waiting(where(binding))

        answer = await matrix.ask(binding, operation, of_task(operation, task_id), "alice", where(binding))

        assert answer.is_success, (operation, answer)


@pytest.mark.parametrize(
    ("binding", "stranger"), [*((one, who) for one in BINDINGS[:3] for who in STRANGERS), (BINDINGS[3], "owner")]
)
async def test_tasks_of_others_look_like_missing_ones(matrix: Matrix, binding: str, stranger: str) -> None:
    who, tenant = STRANGERS[stranger]
    tenant = tenant if where(binding) else ""
    task_id, unknown = await matrix.waiting(where(binding)), str(uuid4())
    before = matrix.stored()
    for operation in OPERATIONS:
        of_alice = await matrix.ask(binding, operation, of_task(operation, task_id), who, tenant)
        of_missing_task = await matrix.ask(binding, operation, of_task(operation, unknown), who, tenant)

        assert not of_alice.is_success, operation
        assert of_alice.without(task_id) == of_missing_task.without(unknown), operation
        config = operation == "GetTaskPushNotificationConfig"
        assert ("No such push notification config" if config else "Task not found") in of_alice.body, operation
        assert of_alice.status in (404, "NOT_FOUND", 200), operation
        assert matrix.stored() == before, operation


@pytest.mark.parametrize("binding", BINDINGS)
async def test_anonymous_callers_learn_nothing(matrix: Matrix, binding: str) -> None:
    task_id, unknown = await matrix.waiting(where(binding)), str(uuid4())
    before = matrix.stored()
    answers = {
        await matrix.ask(binding, operation, of_task(operation, one), "", tenant)
        for operation in OPERATIONS
        for one in (task_id, unknown)
        for tenant in {where(binding), ""}
    }

    [answer] = answers
    assert answer.status in (401, "UNAUTHENTICATED")
    assert matrix.stored() == before


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_forbidden_tenant_is_refused_whatever_it_contains(matrix: Matrix, binding: str) -> None:
    task_id, unknown = await matrix.waiting(where(binding)), str(uuid4())
    before = matrix.stored()
    for operation in OPERATIONS:
        of_alice = await matrix.ask(binding, operation, of_task(operation, task_id), "carol", where(binding))
        of_missing_task = await matrix.ask(binding, operation, of_task(operation, unknown), "carol", where(binding))

        assert of_alice == of_missing_task, operation
        assert "Not permitted in this tenant" in of_alice.body, operation
        assert of_alice.status in (403, "PERMISSION_DENIED") or "0.3" in binding, operation
        assert matrix.stored() == before


@pytest.mark.parametrize("stranger", STRANGERS)
@pytest.mark.parametrize("binding", BINDINGS[:3])
async def test_a_context_of_somebody_elses_is_as_good_as_a_new_one(matrix: Matrix, binding: str, stranger: str) -> None:
    who, tenant = STRANGERS[stranger]
    context_id, unknown = str(uuid4()), str(uuid4())
    theirs = await matrix.waiting(contextId=context_id)
    before = task_of(await matrix.ask("JSONRPC", "GetTask", {"id": theirs}, "alice", "acme"))

    for operation in ("SendMessage", "SendStreamingMessage"):
        shown = []
        for one in (context_id, unknown):
            sent = await matrix.ask(binding, operation, message_json("hi", contextId=one), who, tenant)
            assert sent.is_success, sent
            task = task_of(sent)
            assert task["contextId"] == one
            assert theirs not in sent.body
            listed = await matrix.ask(binding, "ListTasks", {"contextId": one}, who, tenant)
            shown.append((sorted(task), len(task["history"]), totals(listed), theirs in listed.body))
        assert shown[0] == shown[1]

    assert totals(await matrix.ask(binding, "ListTasks", {"contextId": context_id}, "alice", "acme")) == 1
    assert task_of(await matrix.ask("JSONRPC", "GetTask", {"id": theirs}, "alice", "acme")) == before


@pytest.mark.parametrize("binding", BINDINGS[:3])
async def test_a_reference_to_a_task_of_somebody_elses_is_one_to_nothing(matrix: Matrix, binding: str) -> None:
    sent = await matrix.ask("JSONRPC", "SendMessage", message_json(), "alice", "acme", "related")
    theirs, unknown = task_of(sent)["id"], str(uuid4())

    async def responses(who: str, tenant: str, reference: str) -> list[Any]:
        body = message_json(referenceTaskIds=[reference])
        task = task_of(await matrix.ask(binding, "SendMessage", body, who, tenant, "related"))
        assert task["status"]["state"] == "TASK_STATE_COMPLETED"
        return [part.get("data") for artifact in task.get("artifacts", []) for part in artifact["parts"]]

    assert await responses("alice", "acme", theirs) == [[f"{theirs}: 1"]]
    for who, tenant in STRANGERS.values():
        assert await responses(who, tenant, theirs) == await responses(who, tenant, unknown) == [[]]


@pytest.mark.parametrize("binding", BINDINGS[:3])
async def test_lists_and_the_extended_card_are_each_ones_own(matrix: Matrix, binding: str) -> None:
    task_id = await matrix.waiting()

    async def lists(who: str, tenant: str) -> Answer:
        return await matrix.ask(binding, "ListTasks", {}, who, tenant)

    assert task_id in (await lists("alice", "acme")).body
    for who, tenant in STRANGERS.values():
        answer = await lists(who, tenant)
        assert answer.is_success
        assert task_id not in answer.body
    assert (await lists("carol", "acme")).status in (403, "PERMISSION_DENIED")
    assert (await lists("", "acme")).status in (401, "UNAUTHENTICATED")

    async def card(who: str, tenant: str) -> Answer:
        return await matrix.ask(binding, "GetExtendedAgentCard", {}, who, tenant, "full")

    assert "full-extended" in (await card("alice", "acme")).body
    assert await card("bob", "acme") == await card("alice", "acme")
    assert (await card("carol", "acme")).status in (403, "PERMISSION_DENIED")
    assert (await card("", "acme")).status in (401, "UNAUTHENTICATED")


@pytest.mark.parametrize("binding", BINDINGS[:3])
async def test_an_outage_of_the_issuer_has_no_effect(matrix: Matrix, binding: str) -> None:
    matrix.issuer.away = True
    try:
        forged = bearer(token(rsa_key("made-up"), "RS256", "alice", tenants=[""]))
        refused = await ask(matrix.served.gateway, binding, "ListTasks", {}, "", "ask", forged)
        assert refused.status in (401, "UNAUTHENTICATED")
        assert (await matrix.ask(binding, "ListTasks", {}, "alice", "")).is_success
    finally:
        matrix.issuer.away = False
    assert 1 <= matrix.issuer.asked < 10, "its keys are cached"


def task_of(answer: Answer) -> dict[str, Any]:
    """Return the task in a response of any operation and binding."""
    found = answer.data.get("result", answer.data)
    task: dict[str, Any] = found.get("task", found)
    return task


def totals(answer: Answer) -> int:
    """Return the total size of a list."""
    return int(answer.data.get("result", answer.data).get("totalSize", 0))
