"""Secrets of webhooks appear only in posts, and the key that encrypts them can be rotated."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from a2a.types import TaskPushNotificationConfig
from google.protobuf.json_format import MessageToJson, ParseDict
from standardwebhooks import Webhook, WebhookVerificationError

from a2a_celery.crypto.sealing import fingerprint_of
from a2a_celery.push import derive_secret
from a2a_celery.push.request import format_secret
from a2a_celery.store import Keys, SyncStore
from a2a_celery.store.admin.start_check import secrets_in_use
from tests.support.clients.bindings import BINDINGS, message_json, rest, rpc, sdk_client
from tests.support.processes.fleet import Fleet, Gateway, free_port, running_fleet
from tests.support.receivers.celery_events import CeleryEvents, celery_events
from tests.support.receivers.receiver import ReceivedPost, Receiver, echo, receiver
from tests.support.store.secret_scan import FORMS, commands, finds, saved_database, values
from tests.support.waiting import LIMIT, eventually

KEY = "a-key-for-the-tests-of-32-characters-and-more"
LOOPBACK = "127.0.0.0/8"
TOKEN = 'a "token", that\\is <escaped> & odd: 5d1f0c'
CREDENTIALS = 'some "credentials"\\also <escaped>: 9be2a7'
SIGNING = "whsec_" + base64.b64encode(b"a secret that signs, and is never sent").decode()
SECRETS = (TOKEN, CREDENTIALS, SIGNING, "a secret that signs, and is never sent", KEY)
AUTHENTICATION = {"scheme": "Bearer", "credentials": CREDENTIALS}
WAYS = [*((binding, "1.0") for binding in BINDINGS), ("JSONRPC", "0.3"), ("HTTP+JSON", "0.3")]
WRONG: list[dict[str, Any]] = [
    {"url": "http://10.0.0.1/"},
    {"token": TOKEN + "\n"},
    {"token": f"whsec_{TOKEN}"},
    {"token": [TOKEN]},
    {"authentication": CREDENTIALS},
    {"authentication": {"scheme": CREDENTIALS, "credentials": CREDENTIALS}},
]
"""Fields that make a config invalid."""
FINE, FAILING, REFUSED_FOREVER = "/fine", "/failing", "/gone"


@dataclass
class Traces:
    """Fleet with successful and failed deliveries, and all data that its processes wrote."""

    fleet: Fleet
    gateway: Gateway
    events: CeleryEvents
    hooks: Receiver
    answers: dict[str, str] = field(default_factory=dict)
    redis_commands: bytes = b""
    """Commands that Redis received."""

    def places(self) -> dict[str, bytes]:
        """Return all data that the fleet's processes wrote, by place."""
        with redis.Redis.from_url(self.fleet.redis.store_url) as store:
            contents = {"the store": values(store), "the file that Redis saves": saved_database(store)}
            with redis.Redis.from_url(self.fleet.redis.store_url, db=1) as broker:
                contents["the broker"] = values(broker)
        contents |= {f"the log of {p.name}": p.log.read_bytes() for p in self.fleet.processes}
        contents |= {f"the answer to {operation}": text.encode() for operation, text in self.answers.items()}
        # as JSON and as Python, because texts of events may be either
        event_text = json.dumps(self.events.whole, default=repr) + repr(self.events.whole)
        return contents | {"Celery's events": event_text.encode(), "commands to Redis": self.redis_commands}


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traces]:
    """Data of a fleet in which all features have been used."""
    env = {"A2A_SECRET_KEY": KEY, "A2A_ALLOW_NETWORKS": LOOPBACK}
    with (
        running_fleet(tmp_path_factory.mktemp("fleet"), **env) as fleet,
        receiver() as hooks,
        celery_events(fleet.broker_url) as events,
        commands(fleet.redis.store_url.removeprefix("unix://")) as recorder,
    ):
        hooks.plan(FINE, [], then=echo(200))
        hooks.plan(FAILING, [], then=echo(500))
        hooks.plan(REFUSED_FOREVER, [], then=echo(410))
        gateway = fleet.gateway(grpc=True, log_level="debug")
        worker = fleet.start("worker", "worker", "-n", f"w-{fleet.queue}@%h", "-c", "2", "-l", "DEBUG", "-E")
        worker.wait_for_output(" ready.")
        watcher = fleet.start("watcher", "a2a", "watcher", "--log-level", "debug")
        watcher.wait_for_output("watcher started")
        flower = f"http://127.0.0.1:{free_port()}"
        address = ("--address=127.0.0.1", f"--port={flower.rpartition(':')[2]}")
        fleet.start("flower", "flower", *address, FLOWER_UNAUTHENTICATED_API="true")
        eventually(lambda: flower_response(flower, "/api/workers?refresh=1"), what="Flower knows the worker")
        traces = Traces(fleet, gateway, events, hooks)
        use_all_features(traces)
        look_at_flower(traces, flower)
        traces.redis_commands = recorder()
        yield traces


def hook(hooks: Receiver, path: str, token: str = TOKEN, **fields: Any) -> dict[str, Any]:
    return {"url": hooks.url(path), "token": token, "authentication": AUTHENTICATION, **fields}


def use_all_features(traces: Traces) -> None:
    """Create configs in every way, let deliveries succeed and fail, and read data as clients and as operators."""
    gateway, hooks, answers = traces.gateway, traces.hooks, traces.answers
    tasks = []
    for path in (FINE, FAILING, REFUSED_FOREVER):
        config = {"taskPushNotificationConfig": hook(hooks, path)}
        body = message_json("hello") | {"configuration": config}
        response = rpc(gateway, "SendMessage", body, agent="ask")
        answers[f"SendMessage {path}"] = json.dumps(response)
        tasks.append(response["result"]["task"]["id"])
    task, *_ = tasks
    for binding, version in WAYS:
        text = asyncio.run(operations(gateway, binding, version, task, hooks))
        answers[f"the operations over {binding} {version}"] = text
    config = hook(hooks, FINE, SIGNING, id="signed")
    answers["a config that signs"] = rest(
        gateway, "POST", f"/tasks/{task}/pushNotificationConfigs", config, agent="ask"
    ).text
    # the error must not quote the invalid value
    for number, wrong in enumerate(WRONG):
        config = hook(hooks, FINE) | wrong
        refusal = rest(gateway, "POST", f"/tasks/{task}/pushNotificationConfigs", config, agent="ask")
        assert refusal.status_code == 400, refusal.text
        inline = {"configuration": {"taskPushNotificationConfig": config}}
        text = rpc(gateway, "SendMessage", message_json("hello") | inline, agent="ask")
        assert "error" in text
        answers[f"wrong config {number}"] = refusal.text + json.dumps(text)
    # a value of the wrong type, because pydantic quotes the value in its error
    malformed_body = {"pushNotificationConfig": {"url": 1, "token": [TOKEN], "authentication": CREDENTIALS}}
    for method, params in (
        ("tasks/pushNotificationConfig/set", {"taskId": task, **malformed_body}),
        ("message/send", {"message": message_json("hello")["message"], "configuration": malformed_body}),
    ):
        assert "error" in rpc(gateway, method, params, agent="ask", A2A_Version="0.3")
    rpc(gateway, "SendMessage", message_json("7", taskId=task), agent="ask")
    answers["GetTask"] = json.dumps(rpc(gateway, "GetTask", {"id": task}, agent="ask"))
    answers["ListTasks"] = json.dumps(rpc(gateway, "ListTasks", {"includeArtifacts": True}, agent="ask"))
    eventually(lambda: count_ended(hooks) == len(WAYS) + 2, what="all configs hear of the end")
    hooks.wait_for(FAILING, 2)
    hooks.wait_for(REFUSED_FOREVER, 1)
    answers["a2a deliveries list"] = eventually(
        lambda: text if {"dead", "failing"} <= set((text := operator(traces, "list")).split()) else "",
        what="one line fails and one is dead",
    )
    for number, (path, failed_task) in enumerate(zip((FAILING, REFUSED_FOREVER), tasks[1:], strict=True)):
        config_list = rpc(gateway, "ListTaskPushNotificationConfigs", {"taskId": failed_task}, agent="ask")
        [config_id] = [config["id"] for config in config_list["result"]["configs"]]
        output = operator(traces, "show", failed_task, config_id)
        assert json.loads(output)["status"] == (500, 410)[number], path
        assert "[…]" in output, "the receiver said the request again, and that is cut out"
        answers[f"a2a deliveries show {path}"] = output
        webhook = f"/webhooks/{failed_task}/{config_id}"
        ping = rest(gateway, "POST", f"{webhook}:ping", agent="ask")
        deliveries = rest(gateway, "GET", f"{webhook}/deliveries", agent="ask")
        assert (ping.status_code, deliveries.json()["deliveries"][-1]["status"]) == (202, (500, 410)[number])
        answers[f"its owner reads {path}"] = ping.text + deliveries.text
    answers["a2a deliveries list --json"] = operator(traces, "list", "--json")
    answers["/metrics"] = rest(gateway, "GET", "/metrics").text
    answers["a2a doctor"] = traces.fleet.command("a2a", "doctor", "--url", gateway.url).stdout
    answers["celery inspect"] = traces.fleet.command("inspect", "conf").stdout


def look_at_flower(traces: Traces, flower: str) -> None:
    """Record the pages and API responses of Flower."""
    over = eventually(lambda: flower_response(flower, "/api/tasks?state=SUCCESS"), what="Flower shows the runs")
    runs = json.loads(over)
    assert {run["name"] for run in runs.values()} == {"a2a.ask"}
    pages = ["/api/tasks", "/api/workers", "/workers", "/tasks", "/metrics", *(f"/task/{name}" for name in runs)]
    traces.answers |= {f"Flower's {page}": flower_response(flower, page) for page in pages}
    assert all(traces.answers[f"Flower's {page}"] for page in pages)


def flower_response(flower: str, page: str) -> str:
    """Return the text of a Flower response, or "" if it is an error or empty."""
    try:
        answer = httpx.get(f"{flower}{page}", timeout=LIMIT)
    except httpx.HTTPError:
        return ""
    return answer.text if answer.is_success and answer.text not in ("{}", "") else ""


def count_ended(hooks: Receiver) -> int:
    """Return the number of configs that received the COMPLETED event."""
    ends = [got for got in hooks.requests(FINE) if b"completed" in got.body.lower()]
    return len({got.headers["webhook-id"].rpartition("_")[0] for got in ends})  # a config of 0.3 may receive it twice


async def operations(gateway: Gateway, binding: str, version: str, task_id: str, hooks: Receiver) -> str:
    """Use all operations on configs over a binding and protocol version, and return all responses as text."""
    name = f"one {version} {binding}"
    config = ParseDict(hook(hooks, FINE, id=name, taskId=task_id), TaskPushNotificationConfig())
    async with sdk_client(gateway, "ask", binding, version=version) as client:
        created_config = await client.create_task_push_notification_config(config)
    config_list = rpc(gateway, "ListTaskPushNotificationConfigs", {"taskId": task_id}, agent="ask")
    stored_config = rpc(gateway, "GetTaskPushNotificationConfig", {"taskId": task_id, "id": name}, agent="ask")
    assert "error" not in stored_config
    return "\n".join([MessageToJson(created_config), json.dumps(config_list), json.dumps(stored_config)])


def operator(traces: Traces, *arguments: str) -> str:
    result = traces.fleet.command("a2a", "deliveries", *arguments)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_receiver_gets_them(traces: Traces) -> None:
    first, *_ = traces.hooks.requests(FAILING)

    assert first.headers["authorization"] == f"Bearer {CREDENTIALS}"
    assert first.headers["x-a2a-notification-token"] == TOKEN
    assert SIGNING not in {got.headers.get("x-a2a-notification-token") for got in traces.hooks.requests()}


def test_they_are_nowhere_else(traces: Traces) -> None:
    places = traces.places()

    assert len(places["commands to Redis"]) > 10_000
    assert b"task-succeeded" in places["Celery's events"]
    assert b"DEBUG" in places["the log of worker"]
    assert b"failed: answered 500" in places["the log of watcher"]
    assert finds(places, SECRETS) == []


@pytest.mark.parametrize("form", FORMS)
def test_the_scan_finds_what_is_planted(fleet: Fleet, form: str) -> None:
    [encoded_token, *_] = FORMS[form](TOKEN)
    within = f"before {encoded_token} behind"
    with redis.Redis.from_url(fleet.redis.store_url) as client:
        for plant in (
            lambda: client.set("planted", within),
            lambda: client.hset("planted", "field", within),
            lambda: client.hset("planted", within, "value"),
            lambda: client.rpush("planted", *["x" * 9000] * 9, within),
            lambda: client.sadd("planted", within),
            lambda: client.zadd("planted", {within: 1}),
            lambda: client.set(within, "value"),
        ):
            with commands(fleet.redis.store_url.removeprefix("unix://")) as recorder:
                plant()
                eventually(lambda: b"planted" in recorder() or b"before" in recorder(), what="the command is recorded")
            places = {
                "values": values(client),
                "file": saved_database(client),
                "told": recorder(),
                "log": within.encode(),
            }
            finding_text = " ".join(finds(places, SECRETS))
            assert all(f"secret 1 is in {place}, as {form}" in finding_text for place in places), finding_text
            client.flushall()
            assert finds({"values": values(client), "file": saved_database(client)}, SECRETS) == []


NEW = "another-key-for-the-tests-of-32-characters-and-more"


def waiting_task(gateway: Gateway, config: dict[str, Any]) -> str:
    """Create a task that waits for an answer and has a push-notification config. Return the task's id."""
    body = message_json("hello") | {"configuration": {"taskPushNotificationConfig": config}}
    task_id: str = rpc(gateway, "SendMessage", body, agent="ask")["result"]["task"]["id"]
    return task_id


def end(gateway: Gateway, task_id: str) -> None:
    """Answer the question of the task, and require that the task is COMPLETED."""
    task = rpc(gateway, "SendMessage", message_json("7", taskId=task_id), agent="ask")["result"]["task"]
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"


@pytest.fixture(scope="module")
def sealing_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Fleet without a running gateway or watcher. Its store contains a config."""
    with running_fleet(tmp_path_factory.mktemp("sealed"), A2A_SECRET_KEY=KEY, A2A_ALLOW_NETWORKS=LOOPBACK) as fleet:
        gateway = fleet.gateway()
        fleet.worker(pool="threads")
        waiting_task(gateway, {"url": "https://127.0.0.1:9/hook"})
        gateway.stop()
        yield fleet


STARTS = {
    "gateway": ("a2a", "gateway", "--port", "0"),
    "gateways": ("a2a", "gateway", "--port", "0", "--workers", "2"),
    "watcher": ("a2a", "watcher"),
}


@pytest.mark.parametrize("command", STARTS)
@pytest.mark.parametrize(("key", "why"), [("", "is not set"), (NEW, "lacks the secret ")])
def test_nothing_starts_that_could_not_open_the_configs_there_are(
    sealing_fleet: Fleet, command: str, key: str, why: str
) -> None:
    result = sealing_fleet.command(*STARTS[command], A2A_SECRET_KEY=key)

    [line] = result.stderr.splitlines()
    assert result.returncode == 1
    assert result.stdout == ""
    assert line.startswith(f"Error: a2a_secret_key {why}")
    assert "set the A2A_SECRET_KEY of the process that stored them" in line
    assert KEY not in line
    assert NEW not in line


@pytest.mark.parametrize("key", ["", NEW])
def test_any_key_will_do_where_there_are_no_configs(fleet: Fleet, key: str) -> None:
    gateway = fleet.gateway(A2A_SECRET_KEY=key)
    watcher = fleet.watcher(A2A_SECRET_KEY=key)

    assert gateway.is_running
    assert watcher.is_running
    assert ("deliverer" in watcher.output()) == bool(key)


def test_a_key_is_changed_under_configs_that_stay(tmp_path: Path) -> None:
    with (
        running_fleet(tmp_path, A2A_SECRET_KEY=KEY, A2A_ALLOW_NETWORKS=LOOPBACK) as fleet,
        receiver() as hooks,
    ):
        gateway = fleet.gateway()
        fleet.worker(pool="threads")
        old = waiting_task(gateway, {"url": hooks.url("/old"), "id": "derived"})
        waiting_task_id = waiting_task(gateway, {"url": hooks.url("/owned"), "token": SIGNING})
        gateway.stop()
        watcher = fleet.watcher(A2A_SECRET_KEY=f"{NEW} {KEY}")
        gateway = fleet.gateway(A2A_SECRET_KEY=f"{NEW} {KEY}")
        new = waiting_task(gateway, {"url": hooks.url("/new"), "id": "derived"})
        for task_id in (old, waiting_task_id, new):
            end(gateway, task_id)

        for path, task_id in (("/old", old), ("/new", new)):
            for got in wait_until_completed(hooks, path):
                signatures = got.headers["webhook-signature"].split()
                assert len(signatures) == 2
                for key in (NEW, KEY):
                    secret = format_secret(derive_secret(key.encode(), task_id, "derived"))
                    Webhook(secret).verify(got.body, got.headers)
                    matching_secrets = [s for s in signatures if signs(secret, got, s)]
                    assert len(matching_secrets) == 1, "each signature is one key's"
        for got in wait_until_completed(hooks, "/owned"):
            assert len(got.headers["webhook-signature"].split()) == 1
            Webhook(SIGNING).verify(got.body, got.headers)

        secrets_in_use = used_secrets(fleet)
        assert secrets_in_use == {fingerprint_of(KEY.encode()), fingerprint_of(NEW.encode())}
        with redis.Redis.from_url(fleet.redis.store_url) as client:
            first = client.zrange(Keys().sealed_with(fingerprint_of(NEW.encode())), 0, -1)
        assert [new.encode() in member for member in first] == [True], "only the new config is sealed with the new key"
        gateway.stop()
        watcher.stop()
        assert fleet.command("a2a", "watcher", A2A_SECRET_KEY=NEW).returncode == 1, "the old key is still needed"
        with redis.Redis.from_url(fleet.redis.store_url) as client:
            client.delete(Keys().secrets)  # the procedure of docs/webhooks.md for a lost key
        assert fleet.watcher(A2A_SECRET_KEY=NEW).is_running


def wait_until_completed(hooks: Receiver, path: str) -> list[ReceivedPost]:
    """Wait until COMPLETED has been posted to `path`, and return all posts to `path`."""

    def posts_at_end() -> list[ReceivedPost]:
        got = hooks.requests(path)
        return got if any(b"TASK_STATE_COMPLETED" in post.body for post in got) else []

    return eventually(posts_at_end, what=f"the final event is posted to {path}")


def signs(secret: str, got: ReceivedPost, signature: str) -> bool:
    """Return True if `signature` is a signature of the post with `secret`."""
    try:
        Webhook(secret).verify(got.body, {**got.headers, "webhook-signature": signature})
    except WebhookVerificationError:
        return False
    return True


def used_secrets(fleet: Fleet) -> frozenset[str]:
    store = SyncStore(fleet.redis.store_url)
    try:
        return store.run(secrets_in_use(Keys()))
    finally:
        store.close()
