"""Findings of ``a2a doctor`` for each survey."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from math import inf
from threading import Thread
from typing import Any

import pytest

from a2a_celery.cli.doctor.broker_server import BrokerServer
from a2a_celery.cli.doctor.checks import diagnosis
from a2a_celery.cli.doctor.findings import Finding
from a2a_celery.cli.doctor.survey import MAX_WAITING, Survey, gateway_health
from a2a_celery.crypto.sealing import fingerprint_of
from a2a_celery.features.webhooks.check import delivery_findings
from a2a_celery.push.request import format_public_key, parse_private_key
from a2a_celery.settings import Settings, visible_settings
from a2a_celery.store.admin.start_check import Server
from a2a_celery.store.admin.version_workers import VersionWorker
from a2a_celery.telemetry.versions import versions

SETTINGS = Settings(store_url="redis://:secret@127.0.0.1/0")
SERVER = Server(
    kind="Redis",
    version="7.0.15",
    identity="abc/0",
    primary=True,
    evicts="noeviction",
    max_memory=0,
    append_only=True,
    clock_offset=0.01,
    answered_in=0.001,
)


def report(**changes: Any) -> dict[str, Any]:
    """Return the report of a healthy worker, with the fields in `changes` replaced."""
    fine = {
        "pool": "prefork",
        "queues": ["celery"],
        "agents": ["echo"],
        "abandoned": [],
        "events": True,
        "versions": versions(),
        "settings": visible_settings(SETTINGS),
        "store": {"identity": "abc/0", "clock_offset": 0.0, "error": ""},
    }
    return fine | changes


REDIS = BrokerServer("Redis", "7.0.15", 3600.0, {"run_id": "other", "maxmemory_policy": "noeviction"})
RABBIT = BrokerServer("RabbitMQ", "3.10.8", 1800.0)


def watcher(**changes: Any) -> dict[str, Any]:
    """Return the survey fields for a healthy watcher, with the fields in `changes` of its report replaced."""
    fine = {"watcher": "one:1", "settings": visible_settings(SETTINGS), "versions": versions()}
    return {"watchers": {"watcher one:1": fine | changes}}


HEALTHY = Survey(
    settings=SETTINGS,
    store=SERVER,
    store_error="",
    broker=REDIS,
    lines={"store": "redis://127.0.0.1/0 (the default)", "authentication": "API keys (A2A_AUTH_API_KEYS)"},
    workers={"celery@one": report()},
    queues={"echo": "celery"},
    limits={"echo": 0.0},
    gateway="http://127.0.0.1:8000",
    gateway_named=False,
    gateway_health={"status": "ok", "store": "ok"},
    **watcher(),
)


def test_a_worker_of_another_app_is_no_risk() -> None:
    survey = replace(HEALTHY, workers={"celery@one": report(), "celery@three": OTHER_APP})

    for problem in ("", "no backend: set one"):
        findings = diagnosis(replace(survey, results_problem=problem))
        assert {finding.level for finding in findings if "celery@three" in str(finding)} == {"ok"}


def findings_of(level: str, survey: Survey) -> list[Finding]:
    return [finding for finding in diagnosis(survey) if finding.level == level]


def worker(**changes: Any) -> dict[str, Any]:
    return {"workers": {"celery@one": report(**changes)}}


def with_store(**changes: Any) -> dict[str, Any]:
    return {"store": replace(SERVER, **changes)}


def with_metrics(**changes: Any) -> dict[str, Any]:
    return {"metrics": replace(HEALTHY.metrics, **changes)}


def with_limit(limit: float, broker: BrokerServer = REDIS) -> dict[str, Any]:
    return {"broker": broker, "limits": {"echo": limit}}


STOCK = {"error": "its app has no A2A object", "queues": ["celery"], "agents": ["echo"]}
OTHER_APP = {**STOCK, "queues": ["other"], "agents": []}
WITH_STOCK_WORKER = {"workers": {"celery@one": report(), "celery@two": STOCK, "celery@three": OTHER_APP}}

UNREACHABLE = {"store": None, "store_error": "ConnectionError: refused", "watchers": {}}
EVICTING = {"run_id": "abc", "maxmemory_policy": "allkeys-lru", "maxmemory": 1}
KEY, OTHER = (f"{word}-key-for-the-tests-of-32-characters-and-more" for word in ("a", "another"))
PUSHING = replace(SETTINGS, secret_key=KEY)
PRIVATE = "whsk_" + base64.b64encode(b"q" * 32).decode()
PUBLIC = format_public_key(parse_private_key(PRIVATE))
SIGNING = replace(PUSHING, webhook_private_key=PRIVATE)


def watching(*keys: str) -> dict[str, Any]:
    """Return the survey fields for a watcher with the secret keys `keys`."""
    return watcher(secrets=[fingerprint_of(key.encode()) for key in keys])


def signing(key: str) -> dict[str, Any]:
    """Return the survey fields for a watcher that signs webhooks with `key`."""
    secrets = [fingerprint_of(KEY.encode())]
    return watcher(settings=visible_settings(SIGNING), secrets=secrets, signing_keys=[key])


def with_sealed_configs(*keys: str, failing: int = 0, dead: int = 0) -> dict[str, Any]:
    """Return the survey fields for push-notification configs that are sealed with each of `keys`, of which the
    deliveries of `failing` configs fail, and those of `dead` configs were given up."""
    return {
        "secrets": frozenset(fingerprint_of(key.encode()) for key in keys),
        "feature_findings": {"webhooks": list(delivery_findings(failing, dead, is_used=True))},
    }


def test_a_healthy_deployment_has_no_problems() -> None:
    assert {finding.level for finding in diagnosis(HEALTHY)} == {"ok"}
    assert "secret" not in str(diagnosis(HEALTHY))


@pytest.mark.parametrize(
    ("level", "changes", "about", "text"),
    [
        ("wrong", UNREACHABLE, "store", "ConnectionError: refused"),
        ("wrong", with_store(version="5.0.7"), "store", "at least 6.2"),
        ("wrong", with_store(primary=False), "store", "name the primary"),
        ("wrong", {"start_error": "the store has no schema yet"}, "start", "starts: the store has no schema yet."),
        ("wrong", with_store(evicts="allkeys-lru", max_memory=1), "store", "Set noeviction"),
        ("note", with_store(evicts="allkeys-lru"), "store", "Set noeviction"),
        ("note", with_store(append_only=False), "store", "Set appendonly yes"),
        ("wrong", with_store(clock_offset=-9.0), "clock", "this machine is 9.0 s behind"),
        ("wrong", with_store(unsaved="a snapshot"), "store", "could not write a snapshot"),
        ("wrong", {"settings": replace(SETTINGS, store_wait_replicas=1)}, "store", "the store has 0 replicas"),
        ("wrong", with_store(max_memory=100, used_memory=95), "memory", "95% of maxmemory"),
        ("note", with_store(max_memory=100, used_memory=80), "memory", "80% of maxmemory"),
        ("ok", with_store(max_memory=100, used_memory=8), "memory", "8% of maxmemory"),
        ("ok", {"broker": RABBIT}, "broker", "reached: RabbitMQ 3.10.8"),
        ("ok", {"broker": RABBIT}, "timeouts", "consumer_timeout (1800 s, unless it was changed)"),
        ("wrong", {"broker": replace(REDIS, info=EVICTING | {"run_id": "other"})}, "broker", "Set noeviction"),
        ("ok", with_limit(3000.0), "timeouts", "beyond the broker's visibility timeout (3600 s)"),
        ("note", with_limit(4000.0), "timeouts", "runs of echo may take longer than the broker's visibility timeout"),
        ("note", with_limit(3000.0, RABBIT), "timeouts", "the worker, which reconnects"),
        ("ok", with_limit(0.0, RABBIT), "timeouts", "Agents without a time limit may take longer: echo"),
        ("wrong", worker(versions=None), "celery@one", "has an older release, this command has a2a-celery"),
        (
            "wrong",
            worker(versions=versions() | {"celery": "5.6.0"}),
            "celery@one",
            "has celery 5.6.0, this command has celery 5",
        ),
        ("note", {"results_problem": "no backend: set one"}, "results", "no backend: set one."),
        (
            "wrong",
            WITH_STOCK_WORKER | {"results_problem": "no backend: set one"},
            "results",
            "no backend: set one. Such workers run: celery@two.",
        ),
        (
            "note",
            WITH_STOCK_WORKER,
            "exposed tasks",
            "workers without this package do not claim runs: celery@two.",
        ),
        ("ok", {"workers": {"celery@two": STOCK}}, "agents", "1 of 1 have workers"),
        ("ok", WITH_STOCK_WORKER, "celery@three", "without this package, consumes other, has no exposed task."),
        (
            "wrong",
            {"workers": {"celery@one": report(), "celery@two": {**STOCK, "agents": []}}},
            "agent echo",
            "workers that consume its queue celery reject its runs: celery@two.",
        ),
        ("wrong", {"workers": {"celery@three": OTHER_APP}}, "agent echo", "no worker that reports consumes its queue"),
        ("note", worker(events=False), "events", "no events to Flower: celery@one"),
        (
            "note",
            {**worker(slots=2), "waits": {"celery": [660.0] * 888}},
            "queue celery",
            "888 runs wait, the oldest for 11 min 0 s, for 2 slots: add workers",
        ),
        (
            "note",
            {**worker(slots=1), "waits": {"celery": [61.0] * MAX_WAITING}},
            "queue celery",
            f"at least {MAX_WAITING} runs wait, the oldest for 1 min 1 s, for 1 slot:",
        ),
        (
            "ok",
            {**worker(slots=2), "waits": {"celery": [59.0] * 888}},
            "queues",
            "888 runs wait for a worker",
        ),
        ("ok", {**worker(slots=444), "waits": {"celery": [660.0] * 888}}, "queues", "888 runs wait"),
        ("ok", {}, "queues", "no runs wait for a worker"),
        ("ok", with_metrics(paused=148), "questions", "148 tasks wait for an answer"),
        (
            "note",
            with_metrics(paused=148) | {"ending_questions": 3},
            "questions",
            "3 of 148 tasks that wait for an answer fail within the hour",
        ),
        (
            "note",
            {"lines": {"authentication": ""}, "settings": replace(SETTINGS, operators=("*",))},
            "operators",
            "every client can read and change the tasks of all owners",
        ),
        ("note", with_metrics(resubmittable=2), "dead letters", "2 FAILED because the worker was lost"),
        ("wrong", {"broker": "OSError: refused", "workers": {}}, "broker", "Tasks wait in the store"),
        ("wrong", {"workers": {}}, "workers", "start one with celery -A … worker"),
        (
            "note",
            {"workers": {}, "announced": ({"worker": "celery@two", "queues": ["celery"]},)},
            "celery@two",
            "consumes celery, and has no remote control",
        ),
        (
            "note",
            {"workers": {"celery@one": report(), "celery@two": {"error": "KeyError"}}},
            "celery@two",
            "sends no report",
        ),
        (
            "note",
            with_metrics(counts={("version", "echo", "1"): 3}),
            "agent echo",
            "version 1, which no worker has: 3.",
        ),
        (
            "ok",
            with_metrics(counts={("version", "echo", "1"): 3})
            | {"version_workers": (VersionWorker("celery@one", "q", "echo", "1"),)},
            "agent echo",
            "version 1 has open tasks: 3, and workers: 1",
        ),
        ("wrong", {"queues": {"echo": "gpu"}}, "agent echo", "celery -A … worker -Q gpu"),
        ("wrong", {"queues": {"other": "celery"}}, "agent other", "reject its runs: celery@one"),
        ("note", {"queues": {"echo": "celery", "odd": None}}, "agent odd", "not checked"),
        ("wrong", worker(store={"error": "refused"}), "celery@one", "cannot reach the store: refused"),
        ("wrong", worker(store={"identity": "x/1", "clock_offset": 0.0, "error": ""}), "celery@one", "different store"),
        ("wrong", worker(store={"identity": "abc/0", "clock_offset": 7.0, "error": ""}), "clock", "7.0 s ahead"),
        ("note", worker(pool="threads"), "celery@one", "cannot enforce cancellation on the pool threads"),
        ("note", worker(drained=["celery"]), "celery@one", "does not consume celery: a2a drain --worker celery@one"),
        (
            "wrong",
            worker(queues=[], drained=["celery"]),
            "agent echo",
            "only drained workers have its queue celery: celery -A … a2a drain --queue celery --undo",
        ),
        ("note", worker(abandoned=["t.1"]), "celery@one", "still run: t.1"),
        (
            "wrong",
            worker(settings=visible_settings(SETTINGS) | {"lease_ttl": 3.0}),
            "celery@one",
            "A2A_LEASE_TTL is 3.0 there",
        ),
        ("ok", {}, "configuration", "store: redis://127.0.0.1/0 (the default)"),
        ("ok", {}, "configuration", "authentication: API keys (A2A_AUTH_API_KEYS)"),
        (
            "note",
            {"lines": {"authentication": ""}},
            "configuration",
            "authentication: none: every client that reaches the gateway",
        ),
        ("note", {"import_errors": {"echo": "'a:b' cannot be loaded"}}, "agent echo", "Running workers have the agent"),
        ("wrong", {"import_errors": {"other": "'a:b' cannot be loaded"}}, "agent other", "No worker can start"),
        ("wrong", {"watchers": {}}, "watchers", "Start celery -A … a2a watcher"),
        ("wrong", watcher(settings={}), "watcher one:1", "A2A_LEASE_TTL is None"),
        ("wrong", {"settings": PUSHING}, "watcher one:1", "has no A2A_SECRET_KEY, so deliveries to webhooks fail"),
        (
            "wrong",
            {"settings": PUSHING, **watching(OTHER)},
            "watcher one:1",
            "Set the gateways' A2A_SECRET_KEY there",
        ),
        (
            "wrong",
            {**with_sealed_configs(KEY), **watching()},
            "watcher one:1",
            "has no A2A_SECRET_KEY, so deliveries to webhooks fail",
        ),
        (
            "note",
            with_sealed_configs(KEY, failing=3),
            "webhooks",
            "3 failing now: celery -A … a2a deliveries",
        ),
        (
            "note",
            with_sealed_configs(KEY, dead=2),
            "webhooks",
            "2 given up: celery -A … a2a deliveries list --dead",
        ),
        (
            "ok",
            {"settings": PUSHING, **with_sealed_configs(KEY), **watching(KEY)},
            "webhooks",
            "no delivery was given up",
        ),
        (
            "ok",
            {"settings": PUSHING, **watching(OTHER, KEY)},
            "secret key",
            "decrypt all webhooks",
        ),
        ("wrong", {"settings": SIGNING}, "watcher one:1", "has no A2A_WEBHOOK_PRIVATE_KEY, and gateways publish"),
        ("wrong", signing(PUBLIC), "watcher one:1", f"signs webhooks with {PUBLIC}, which gateways with"),
        ("ok", {"settings": SIGNING, **signing(PUBLIC)}, "signatures", "watchers sign with published keys"),
        ("note", {"gateway_health": "refused"}, "gateway", "pass its address with --url"),
        ("wrong", {"gateway_health": "refused", "gateway_named": True}, "gateway", "no gateway at"),
        ("wrong", {"gateway_health": {"status": "unavailable", "store": "gone"}}, "gateway", "not ready: store: gone"),
    ],
)
def test_a_finding_names_its_remedy(level: str, changes: Mapping[str, Any], about: str, text: str) -> None:
    findings = [finding for finding in findings_of(level, replace(HEALTHY, **changes)) if finding.about == about]

    assert text in " ".join(finding.text for finding in findings)


def test_the_stores_own_redis_as_the_broker_is_judged_once() -> None:
    store = with_store(evicts="allkeys-lru", max_memory=1)
    survey = replace(HEALTHY, **store, broker=replace(REDIS, info=EVICTING))

    assert [finding.about for finding in findings_of("wrong", survey) if "noeviction" in finding.text] == ["store"]


@pytest.mark.parametrize(
    ("changes", "check"),
    [
        (with_store(clock_offset=-9.0), "clocks"),
        (with_store(max_memory=100, used_memory=95), "memory"),
        (worker(versions=None), "versions"),
        (with_limit(inf), "timeouts"),
        (with_sealed_configs(KEY, dead=2), "webhooks"),
    ],
)
def test_a_check_with_a_problem_reports_no_success(changes: Mapping[str, Any], check: str) -> None:
    findings = [finding for finding in diagnosis(replace(HEALTHY, **changes)) if finding.check == check]

    assert findings
    assert {finding.level for finding in findings} <= {"note", "wrong"}


def test_the_json_output_has_the_same_findings() -> None:
    [finding] = [
        json.loads(f.as_json())
        for f in diagnosis(replace(HEALTHY, **with_metrics(resubmittable=2)))
        if f.level == "note"
    ]

    assert finding.pop("text").startswith("2 FAILED because")
    assert finding == {"check": "dead_letters", "level": "note", "about": "dead letters"}


def test_a_key_rotation_is_no_problem() -> None:
    """During the rotation, the gateways list the new key first. All processes have both keys, and configs are sealed
    with either."""
    changing = replace(SETTINGS, secret_key=(OTHER, KEY))

    survey = replace(HEALTHY, settings=changing, **with_sealed_configs(KEY, OTHER), **watching(KEY, OTHER))

    assert {finding.level for finding in diagnosis(survey)} == {"ok"}
    assert KEY not in str(diagnosis(survey))


def test_settings_of_the_gateway_alone_may_differ() -> None:
    own_settings = visible_settings(SETTINGS) | {"grpc_port": 50051, "public_url": "https://example.com"}

    assert findings_of("wrong", replace(HEALTHY, workers={"celery@one": report(settings=own_settings)})) == []


OTHER_PREFIX = {"settings": visible_settings(SETTINGS) | {"key_prefix": "shop", "lease_ttl": 60.0}}
OTHER_STORE = {"store": {"identity": "def/0", "clock_offset": 60.0, "error": ""}}
NO_STORE = {"store": {"error": "no reply within 1 s"}}


@pytest.mark.parametrize("changes", [OTHER_PREFIX, OTHER_STORE, OTHER_PREFIX | OTHER_STORE, OTHER_PREFIX | NO_STORE])
def test_a_worker_of_another_fleet_without_a_shared_queue_is_only_noted(changes: dict[str, Any]) -> None:
    other = report(queues=["shop"], agents=["order"], versions={}, events=False, pool="threads", **changes)
    survey = replace(HEALTHY, workers={"celery@one": report(), "celery@shop": other})

    [finding] = [finding for finding in diagnosis(survey) if "celery@shop" in str(finding)]
    alone = findings_of("wrong", replace(survey, workers={"celery@shop": other}))

    assert (finding.level, finding.check) == ("note", "other_fleets")
    assert "consumes no queue of the agents of this app: shop" in finding.text
    assert [finding.about for finding in alone] == ["workers"]


def test_a_worker_of_another_fleet_with_a_shared_queue_is_wrong() -> None:
    other = report(queues=["shop", "celery"], agents=["echo", "order"], **OTHER_PREFIX)
    survey = replace(HEALTHY, workers={"celery@one": report(), "celery@shop": other})

    [finding] = findings_of("wrong", survey)

    assert finding.about == "celery@shop"
    assert "share celery" in finding.text


def test_workers_need_no_webhook_settings() -> None:
    worker_settings = visible_settings(SETTINGS) | {"allow_networks": ["10.1.0.0/16"]}

    assert findings_of("wrong", replace(HEALTHY, workers={"celery@one": report(settings=worker_settings)})) == []
    assert "A2A_ALLOW_NETWORKS" in findings_of("wrong", replace(HEALTHY, **watcher(settings=worker_settings)))[0].text


def test_a_worker_whose_settings_cannot_be_used() -> None:
    broken = {"pool": "prefork", "queues": [], "agents": [], "abandoned": [], "error": "a2a_lease_ttl = -1"}
    survey = replace(HEALTHY, workers={"celery@one": report(), "celery@two": broken})

    assert [finding.about for finding in findings_of("wrong", survey)] == ["celery@two"]


URL, PLACE = "postgresql+asyncpg://me:s3cret@db.example.com/a2a", "postgresql+asyncpg://db.example.com/a2a"
ARCHIVING = replace(HEALTHY, settings=replace(SETTINGS, archive_url=URL), **watcher(archive=PLACE))


def test_a_healthy_archive_is_reported() -> None:
    assert findings_of("wrong", ARCHIVING) == []
    assert "0 ended tasks are due for it, none is late" in str(findings_of("ok", ARCHIVING))
    assert "s3cret" not in str(diagnosis(ARCHIVING))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (watcher(), "another archive or none: watcher one:1"),
        (with_metrics(to_archive=7, archive_lag=3600.0), "7 ended tasks are due, the oldest for 3600 s"),
        (with_metrics(archive_refused=2), "its database refuses 2 tasks"),
        ({"archive_error": "it is away"}, "it is away. Until it works, ended tasks stay in the store"),
    ],
)
def test_problems_of_the_archive_are_reported(changes: dict[str, Any], text: str) -> None:
    assert text in str(findings_of("wrong", replace(ARCHIVING, **changes)))


@pytest.mark.parametrize(
    ("url", "reason"), [("http://127.0.0.1:80a", "InvalidURL: "), ("http://127.0.0.1:1", "ConnectError: ")]
)
def test_a_gateway_that_cannot_be_read_has_a_reason(url: str, reason: str) -> None:
    assert str(gateway_health(url)).startswith(reason)


class _Ready(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"status": "ok"}')


def test_a_gateway_is_read_without_the_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with HTTPServer(("127.0.0.1", 0), _Ready) as server:
        Thread(target=server.handle_request).start()

        assert gateway_health(f"http://127.0.0.1:{server.server_port}") == {"status": "ok"}
