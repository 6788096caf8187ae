"""Findings of ``a2a doctor`` for each survey."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from a2a_celery.cli.doctor.archive_check import StorageState
from a2a_celery.cli.doctor.command import Finding, diagnosis
from a2a_celery.cli.doctor.deployment_checks import same_settings
from a2a_celery.cli.doctor.survey import BrokerServer, Survey, Webhooks, Work, gateway_health
from a2a_celery.crypto.sealing import fingerprint_of
from a2a_celery.settings import Settings, visible_settings
from a2a_celery.store.admin.archiving import ArchiveState
from a2a_celery.store.admin.schema import SCHEMA, Opened
from a2a_celery.store.admin.start_check import Server
from a2a_celery.store.admin.version_workers import VersionWorker
from a2a_celery.telemetry.versions import versions

SETTINGS = Settings(store_url="redis://:secret@127.0.0.1/0")
SERVER = Server(
    kind="Redis",
    version="7.0.15",
    identity="abc/0",
    primary=True,
    cluster=False,
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


HEALTHY = Survey(
    settings=SETTINGS,
    store=SERVER,
    lines={"store": "redis://127.0.0.1/0 (the default)", "authentication": "API keys (A2A_AUTH_API_KEYS)"},
    watchers=({"watcher": "one:1", "settings": visible_settings(SETTINGS), "versions": versions()},),
    workers={"celery@one": report()},
    queues={"echo": "celery"},
    gateway="http://127.0.0.1:8000",
    gateway_health={"status": "ok", "store": "ok"},
)


def findings_of(level: str, survey: Survey) -> list[Finding]:
    return [finding for finding in diagnosis(survey) if finding.level == level]


def worker(**changes: Any) -> dict[str, Any]:
    return {"workers": {"celery@one": report(**changes)}}


def with_store(**changes: Any) -> dict[str, Any]:
    return {"store": replace(SERVER, **changes)}


REDIS = BrokerServer("Redis", "7.0.15", "other", "noeviction", ack_timeout=3600.0)
RABBIT = BrokerServer("RabbitMQ", "3.10.8", ack_timeout=1800.0)


def working(*, broker: BrokerServer = REDIS, **work: Any) -> dict[str, Any]:
    """Return the survey fields for `broker` and a worker with the properties `work`."""
    return {"broker": broker, "work": {"echo": Work(**work)}}


KEY, OTHER = (f"{word}-key-for-the-tests-of-32-characters-and-more" for word in ("a", "another"))
PUSHING = replace(SETTINGS, secret_key=KEY)
PUBLIC = "whpk_" + base64.b64encode(b"q" * 32).decode()
SIGNING = replace(PUSHING, webhook_public_keys=(PUBLIC,))


def watching(*keys: str) -> dict[str, Any]:
    """Return the survey fields for a watcher with the secret keys `keys`."""
    secrets = [fingerprint_of(key.encode()) for key in keys]
    return {
        "watchers": (
            {"watcher": "one:1", "settings": visible_settings(SETTINGS), "secrets": secrets, "versions": versions()},
        )
    }


def signing(key: str) -> dict[str, Any]:
    """Return the survey fields for a watcher that signs webhooks with `key`."""
    [watcher] = watching(KEY)["watchers"]
    return {"watchers": ({**watcher, "settings": visible_settings(SIGNING), "signing_keys": [key]},)}


def with_sealed_configs(*keys: str, **changes: int) -> dict[str, Any]:
    """Return the survey fields for push-notification configs that are sealed with each of `keys`."""
    return {"webhooks": Webhooks(frozenset(fingerprint_of(key.encode()) for key in keys), **changes)}


def test_a_healthy_deployment_has_no_problems() -> None:
    assert {finding.level for finding in diagnosis(HEALTHY)} == {"ok"}
    assert "secret" not in str(diagnosis(HEALTHY))


@pytest.mark.parametrize(
    ("level", "changes", "about", "text"),
    [
        ("wrong", {"store": "ConnectionError: refused", "watchers": "the same"}, "store", "ConnectionError: refused"),
        ("wrong", with_store(version="5.0.7"), "store", "at least 6.2"),
        ("wrong", with_store(primary=False), "store", "name the primary"),
        ("wrong", with_store(cluster=True), "store", "use one primary"),
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
        ("wrong", {"broker": replace(REDIS, evicts="allkeys-lru", max_memory=1)}, "broker", "Set noeviction"),
        ("ok", working(limit=3000.0), "timeouts", "beyond the broker's visibility timeout (3600 s)"),
        ("note", working(limit=4000.0), "timeouts", "the broker redelivers the message"),
        ("note", working(late=True), "timeouts", "workers drop the copies"),
        ("ok", working(late=True, limit=60.0), "timeouts", "no agent"),
        ("note", working(broker=RABBIT, limit=3000.0), "timeouts", "the broker closes the worker's channel"),
        ("wrong", working(broker=RABBIT, late=True), "timeouts", "raise the timeout"),
        ("wrong", worker(versions=None), "celery@one", "has an older release, this command has a2a-celery"),
        (
            "wrong",
            worker(versions=versions() | {"celery": "5.6.0"}),
            "celery@one",
            "has celery 5.6.0, this command has celery 5",
        ),
        ("note", working(plain=True) | {"unreadable_results": "no backend: set one"}, "results", "no backend: set one"),
        ("note", working(plain=True) | {"ignores_results": True}, "results", "has ignore_result=False"),
        ("note", worker(events=False), "events", "no events to Flower: celery@one"),
        ("note", {"dead_letters": 2}, "dead letters", "2 FAILED because the worker was lost"),
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
            "no A2A object",
        ),
        ("note", {"version_tasks": {("echo", "1"): 3}}, "agent echo", "version 1, which no worker has: 3."),
        (
            "ok",
            {"version_tasks": {("echo", "1"): 3}, "version_workers": (VersionWorker("celery@one", "q", "echo", "1"),)},
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
        ("wrong", {"watchers": ()}, "watchers", "Start celery -A … a2a watcher"),
        ("wrong", {"watchers": ({"watcher": "one:1", "settings": {}},)}, "watcher one:1", "A2A_LEASE_TTL is None"),
        ("wrong", {"settings": PUSHING}, "watcher one:1", "has no A2A_SECRET_KEY, so it delivers nothing"),
        (
            "wrong",
            {"settings": PUSHING, **watching()},
            "watcher one:1",
            "delivers nothing to webhooks. Set the gateways' key",
        ),
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
            "has no A2A_SECRET_KEY, so it delivers nothing",
        ),
        (
            "wrong",
            {**with_sealed_configs(KEY), **watching(KEY)},
            "secret key",
            "is not set here, but webhooks in the store",
        ),
        (
            "wrong",
            {"settings": PUSHING, **with_sealed_configs(OTHER), **watching(KEY, OTHER)},
            "secret key",
            "lacks a key",
        ),
        (
            "note",
            with_sealed_configs(KEY, failing=3),
            "webhooks",
            "3 failing now: celery -A … a2a deliveries",
        ),
        ("note", with_sealed_configs(KEY, dead=2), "webhooks", "2 given up: celery -A … a2a deliveries list --dead"),
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
            "the key decrypts all webhooks",
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
    evicting = {"evicts": "allkeys-lru", "max_memory": 1}
    survey = replace(HEALTHY, **with_store(**evicting), broker=replace(REDIS, identity="abc", **evicting))

    assert [finding.about for finding in findings_of("wrong", survey) if "noeviction" in finding.text] == ["store"]


def test_the_json_output_has_the_same_findings() -> None:
    [finding] = [json.loads(f.as_json()) for f in diagnosis(replace(HEALTHY, dead_letters=2)) if f.level == "note"]

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


@pytest.mark.parametrize(
    ("queues", "level", "text"),
    [(["shop"], "note", "It consumes other queues"), (["shop", "celery"], "wrong", "share celery")],
)
def test_a_worker_of_another_fleet(queues: list[str], level: str, text: str) -> None:
    settings = visible_settings(SETTINGS) | {"key_prefix": "shop"}
    other = report(queues=queues, agents=["echo", "order"], settings=settings)
    survey = replace(HEALTHY, workers={"celery@one": report(), "celery@shop": other})

    [finding] = [finding for finding in same_settings(survey) if finding.about == "celery@shop"]

    assert finding.level == level
    assert text in finding.text


def test_workers_need_no_webhook_settings() -> None:
    worker_settings = visible_settings(SETTINGS) | {"allow_networks": ["10.1.0.0/16"]}
    watcher = {"watchers": [{"watcher": "one:1", "settings": worker_settings, "versions": versions()}]}

    assert findings_of("wrong", replace(HEALTHY, workers={"celery@one": report(settings=worker_settings)})) == []
    assert "A2A_ALLOW_NETWORKS" in findings_of("wrong", replace(HEALTHY, **watcher))[0].text


def test_a_worker_whose_settings_cannot_be_used() -> None:
    broken = {"pool": "prefork", "queues": [], "agents": [], "abandoned": [], "error": "a2a_lease_ttl = -1"}
    survey = replace(HEALTHY, workers={"celery@one": report(), "celery@two": broken})

    assert [finding.about for finding in findings_of("wrong", survey)] == ["celery@two"]


def storage(**changes: Any) -> StorageState:
    """Return the state of a healthy store with an archive, with the fields in `changes` replaced."""
    state = {"on": True, "complete": True, "waiting": 3, "due": 0, "lag": 0.0, "refused": 0}
    opening = Opened(changes.pop("schema", SCHEMA), True)
    return StorageState(opening, database=changes.pop("database", ""), archive=ArchiveState(**(state | changes)))


URL, PLACE = "postgresql+asyncpg://me:s3cret@db.example.com/a2a", "postgresql://db.example.com/a2a"
ARCHIVING = replace(
    HEALTHY,
    settings=replace(SETTINGS, archive_url=URL),
    watchers=({"watcher": "one:1", "settings": visible_settings(SETTINGS), "versions": versions(), "archive": PLACE},),
    storage=storage(),
)


def test_a_healthy_archive_is_reported() -> None:
    assert findings_of("wrong", ARCHIVING) == []
    assert "3 ended tasks wait for it, none is late" in str(findings_of("ok", ARCHIVING))
    assert "s3cret" not in str(diagnosis(ARCHIVING))


@pytest.mark.parametrize(
    ("survey", "text"),
    [
        (replace(ARCHIVING, settings=SETTINGS), "A2A_ARCHIVE_URL is not set here, but ended tasks are archived"),
        (replace(ARCHIVING, watchers=HEALTHY.watchers), "have another archive or none: one:1"),
        (replace(ARCHIVING, storage=storage(due=7, lag=3600.0)), "7 ended tasks are due, the oldest for 3600 s"),
        (replace(ARCHIVING, storage=storage(refused=2)), "its database refuses 2 tasks"),
        (
            replace(ARCHIVING, storage=storage(database="it is away")),
            "it is away. Until it works, ended tasks stay in the store",
        ),
        (replace(ARCHIVING, storage=storage(schema=0)), "no schema yet"),
        (replace(ARCHIVING, storage=storage(schema=SCHEMA + 1)), "of a newer release"),
    ],
)
def test_problems_of_the_archive_are_reported(survey: Survey, text: str) -> None:
    assert text in str(findings_of("wrong", survey))


@pytest.mark.parametrize(
    ("url", "reason"), [("http://127.0.0.1:80a", "InvalidURL: "), ("http://127.0.0.1:1", "ConnectError: ")]
)
def test_a_gateway_that_cannot_be_read_has_a_reason(url: str, reason: str) -> None:
    assert str(gateway_health(url)).startswith(reason)
