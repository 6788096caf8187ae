"""Fleets with TLS, and with users that have only the permissions of docs/security.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.support import ROOT
from tests.support.certificates import Authority
from tests.support.clients import talk
from tests.support.clients.bindings import message_json, rest
from tests.support.processes.fleet import Fleet, Gateway, Process, running_fleet
from tests.support.processes.tls_servers import auditor, rabbitmq_with_tls, redis_with_tls, refusals
from tests.support.store.secret_scan import finds
from tests.support.waiting import eventually

PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
STORE, BROKER, GATEWAY, WORKER = (f"{name}-pa55word-5d1f0c9b" for name in ("store", "broker", "gateway", "worker"))
KEY = "a-key-for-the-tests-of-32-characters-and-more"
SECRETS = (STORE, BROKER, GATEWAY, WORKER, KEY)
APP = "tests.support.agents.tls_agents"


def rules() -> list[str]:
    """Return the documented lines of an aclfile, with passwords."""
    lines = [line for block in re.findall(r"```acl\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
    return [line.replace("STORE_PASSWORD", STORE).replace("BROKER_PASSWORD", BROKER) for line in lines]


def permissions() -> dict[str, list[str]]:
    """Return the patterns of the documented permissions to configure, write and read, by user."""
    permission_rows = re.findall(
        r"^rabbitmqctl set_permissions -p acme (\S+) '(.*)' '(.*)' '(.*)'$", PAGE, re.MULTILINE
    )
    return {name: patterns for name, *patterns in permission_rows}


def environment(**env: str) -> dict[str, str]:
    base_env = {"A2A_SECRET_KEY": KEY, "A2A_ALLOW_NETWORKS": "127.0.0.0/8"}
    return base_env | {"A2A_CANCEL_GRACE": "1", "A2A_REDISPATCH_AFTER": "2", "TEST_EVENTS": "1"} | env


def send(gateway: Gateway, agent: str, data: Any, **fields: Any) -> dict[str, Any]:
    """Send a message to `agent` and return the task. `fields` are fields of the configuration."""
    body = message_json() | {"configuration": fields}
    body["message"]["parts"] = [{"data": data} if isinstance(data, dict) else {"text": data}]
    answer = rest(gateway, "POST", "/message:send", body, agent=agent)
    assert answer.status_code == 200, answer.text
    task: dict[str, Any] = answer.json()["task"]
    return task


def does_everything(fleet: Fleet, gateway: Gateway, worker: Process, **env: str) -> str:
    """Use runs, canvases, retries, cancels, webhooks and operator commands, and return the doctor's findings."""
    texts = [send(gateway, "echo", "hello"), send(gateway, "flaky", {"succeed_at": 2})]
    texts += [send(gateway, "canvas", {"how": canvas_kind}) for canvas_kind in ("chord", "returned chain")]
    assert {task["status"]["state"] for task in texts} == {"TASK_STATE_COMPLETED"}, texts
    hook = {"url": "http://127.0.0.1:9/", "token": "t"}
    waits = send(gateway, "ask", "hello", taskPushNotificationConfig=hook)
    config_list = rest(gateway, "GET", f"/tasks/{waits['id']}/pushNotificationConfigs", agent="ask")
    assert len(config_list.json()["configs"]) == 1, config_list.text
    for config in config_list.json()["configs"]:  # no server listens there, and the doctor would report it
        rest(gateway, "DELETE", f"/tasks/{waits['id']}/pushNotificationConfigs/{config['id']}", agent="ask")
    running_task = send(gateway, "sleeps", {"seconds": 60}, returnImmediately=True)["id"]
    eventually(lambda: f"run {running_task}.1 of sleeps begins" in worker.output(), what="the run has begun")
    canceled_task = talk.cancel_task(gateway, "sleeps", {"id": running_task})
    assert canceled_task["status"]["state"] == "TASK_STATE_CANCELED", canceled_task

    doctor = fleet.command("a2a", "doctor", "--url", gateway.url, **env)
    lines = doctor.stdout.splitlines()  # one of the test agents uses late acknowledgements, even on RabbitMQ
    wrong = [line for line in lines if line.startswith("wrong") and "timeouts:" not in line]
    assert lines, doctor.stderr
    assert wrong == [], doctor.stdout
    result = fleet.command("a2a", "list", "--stuck", **env)
    assert result.returncode == 0, result.stderr
    metrics = rest(gateway, "GET", "/metrics").text
    outputs = [doctor.stdout, doctor.stderr, result.stdout, result.stderr, config_list.text, metrics]
    return "\n".join([*outputs, *(process.output() for process in fleet.processes)])


def test_redis_with_tls_and_users_for_store_and_broker(tmp_path: Path) -> None:
    authority = Authority.create_in(tmp_path)
    with redis_with_tls(tmp_path, authority, "\n".join(rules())) as server, auditor(server) as audit:
        files = server.files
        tls = (
            f"ssl_ca_certs={files['TEST_CA']}&ssl_certfile={files['TEST_CERTIFICATE']}&ssl_keyfile={files['TEST_KEY']}"
        )
        broker = f"rediss://a2a-broker:{BROKER}@127.0.0.1:{server.port}/0"
        secret = tmp_path / "store_url"
        secret.write_text(f"rediss://a2a-store:{STORE}@127.0.0.1:{server.port}/1?{tls}\n")
        env = environment(CELERY_BROKER_URL=broker, TEST_RESULTS=broker, **files)
        with running_fleet(tmp_path, app=APP, **env) as fleet:
            fleet.environment_without("A2A_STORE_URL")
            store = {"A2A_STORE_URL_FILE": str(secret)}
            worker = fleet.worker(pool="prefork", concurrency=3, **store)
            gateway = fleet.gateway(**store)
            fleet.watcher(**store)

            text = does_everything(fleet, gateway, worker, **store)

            key = server.client[0].read_text().splitlines()[1]
            assert not finds({"what was printed and answered": text.encode()}, [*SECRETS, key])
        assert refusals(audit) == []
        assert {key.partition(b":")[0] for key in audit.keys("*")} <= {b"acme-broker", b"acme-results"}
        strangers = redis.Redis(port=server.port, ssl=True, ssl_ca_certs=files["TEST_CA"])
        with pytest.raises(redis.RedisError):
            strangers.ping()


def test_rabbitmq_with_tls_and_users_for_gateways_and_workers(tmp_path: Path) -> None:
    authority = Authority.create_in(tmp_path)
    passwords = {"a2a-gateway": GATEWAY, "a2a-worker": WORKER}
    users = {name: (passwords[name], patterns) for name, patterns in permissions().items()}
    with rabbitmq_with_tls(tmp_path, authority, "acme", users) as server:
        gateways, workers = (
            {"CELERY_BROKER_URL": f"amqps://{name}:{passwords[name]}@127.0.0.1:{server.port}/acme"} for name in users
        )
        with running_fleet(tmp_path, app=APP, **environment(TEST_QUEUE="celery", **gateways, **server.files)) as fleet:
            [rule] = [line for line in rules() if line.startswith("user a2a-store ")]
            with redis.Redis.from_url(fleet.redis.store_url) as store:
                if str(store.info("server")["redis_version"]).startswith("6."):
                    [more] = re.findall(r"^On Redis 6\.2, .* put `(.*?)` behind it", PAGE, re.MULTILINE)
                    rule += f" {more}"
                store.execute_command("ACL", "SETUSER", *rule.split()[1:])
                path = fleet.redis.store_url.removeprefix("unix://")
                ours = {"A2A_STORE_URL": f"unix://a2a-store:{STORE}@{path}"}
                worker = fleet.worker(pool="prefork", concurrency=3, **workers, **ours)
                gateway = fleet.gateway(**ours)
                fleet.watcher(**ours)

                text = does_everything(fleet, gateway, worker, **ours)

                assert not finds({"what was printed and answered": text.encode()}, SECRETS)
                assert refusals(store) == []
        log = "".join(path.read_text() for path in (tmp_path / "log").glob("*.log"))
        assert "access_refused" not in log.lower()
        assert "refused for user" not in log


def test_what_does_not_answer_is_named_without_its_password(tmp_path: Path) -> None:
    env = {
        "CELERY_BROKER_URL": f"amqp://a2a:{BROKER}@127.0.0.1:1//",
        "A2A_STORE_URL": f"redis://a2a-store:{STORE}@127.0.0.1:1/0",
        "TEST_RESULTS": f"redis://:{WORKER}@127.0.0.1:1/1",
    }
    with running_fleet(tmp_path, app="tests.support.agents.plain_tasks") as fleet:
        for command in (("doctor",), ("list", "--stuck"), ("deliveries",)):
            result = fleet.command("a2a", *command, **env)

            assert result.returncode != 0
            assert result.stdout + result.stderr, command
            assert not finds({" ".join(command): (result.stdout + result.stderr).encode()}, SECRETS)
