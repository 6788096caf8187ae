"""Checks of watchers, gateways, webhooks, dead letters and settings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from ...crypto.sealing import sealer_of
from ...gateway.cards import published_keys
from ...gateway.health import NO_AUTHENTICATION
from ...settings import ENV_PREFIX, Settings, visible_settings
from .survey import Finding, Level, Survey, note, ok, reporting, wrong

OWN_TO_A_PROCESS = {
    "grpc_port",
    "grpc_host",
    "grpc_without_authentication",
    "grpc_public_address",
    "public_url",
    "max_request_bytes",
    "ui",
    "operators",
    "trace_url",
} | {f.name for f in fields(Settings) if f.name.startswith("auth_")}
"""Settings that only gateways use."""

NOT_OF_WORKERS = {"allow_networks", "archive_retention", "webhook_public_keys"}
"""Settings that gateways and watchers use, but workers do not."""


def configuration(survey: Survey) -> Iterator[Finding]:
    """Report the store, the broker, authentication, webhook signatures, and the configured settings with sources."""
    for about, line in survey.lines.items():
        if line:
            yield ok("configuration", f"{about}: {line}")
    if not survey.lines.get("authentication"):
        yield note("configuration", f"authentication: {NO_AUTHENTICATION}")


def watchers(survey: Survey) -> Iterator[Finding]:
    """Check that a watcher runs."""
    if isinstance(survey.watchers, str):
        return
    if not survey.watchers:
        yield wrong(
            "watchers",
            "no watcher runs: runs of lost workers stay open, and runs that the broker did not "
            "accept never begin. Start celery -A … a2a watcher.",
        )
    else:
        yield ok("watchers", ", ".join(report["watcher"] for report in survey.watchers))


def webhooks(survey: Survey) -> Iterator[Finding]:
    """Check that webhooks receive their events."""
    failing, dead = survey.webhooks.failing, survey.webhooks.dead
    if failing:
        yield note("webhooks", f"{failing} failing now: celery -A … a2a deliveries shows the reason.")
    if dead:
        yield note(
            "webhooks",
            f"{dead} given up: celery -A … a2a deliveries list --dead shows the reason; "
            "a2a deliveries replay --all posts the missed events.",
        )
    if survey.webhooks.secrets and not (failing or dead):
        yield ok("webhooks", "no webhook fails, and no delivery was given up")


def dead_letters(survey: Survey) -> Iterator[Finding]:
    """Report failed tasks that an operator can requeue."""
    if survey.dead_letters:
        yield note(
            "dead letters",
            f"{survey.dead_letters} FAILED because the worker was lost: celery -A … a2a requeue lists them; "
            "a2a requeue --all runs them again.",
        )


def secrets(survey: Survey) -> Iterator[Finding]:
    """Check that watchers can decrypt existing and future webhook configs."""
    sealer = sealer_of(survey.settings.secret_keys)
    fingerprints = sealer.fingerprints if sealer is not None else frozenset()
    if survey.webhooks.secrets - fingerprints:
        yield wrong(
            "secret key",
            f"A2A_SECRET_KEY {'lacks a key' if fingerprints else 'is not set here'}, but webhooks in the store are "
            "encrypted with it, so no gateway starts. Append the key of those webhooks to A2A_SECRET_KEY.",
        )
    required_secrets = survey.webhooks.secrets | ({sealer.fingerprint} if sealer is not None else set())
    others = () if isinstance(survey.watchers, str) else survey.watchers
    lacking = False
    for report in others:
        process, available = f"watcher {report['watcher']}", set(report.get("secrets", ()))
        if required_secrets and not available:
            yield wrong(
                process, "has no A2A_SECRET_KEY, so it delivers nothing to webhooks. Set the gateways' key there."
            )
        elif required_secrets - available:
            yield wrong(
                process,
                "cannot decrypt all webhooks in the store, or those of a gateway with these settings, so their "
                "deliveries fail. Set the gateways' A2A_SECRET_KEY there.",
            )
        lacking |= bool(required_secrets - available)
    if required_secrets and others and not lacking:
        yield ok("secret key", "the key decrypts all webhooks, in watchers too")


def signing_keys(survey: Survey) -> Iterator[Finding]:
    """Check that each watcher signs with an Ed25519 key that gateways publish."""
    public_keys = published_keys(survey.settings)
    others = () if isinstance(survey.watchers, str) else survey.watchers
    agree = bool(public_keys and others)
    for report in others:
        process, keys = f"watcher {report['watcher']}", report.get("signing_keys", [])
        if public_keys and not keys:
            agree = False
            yield wrong(process, "has no A2A_WEBHOOK_PRIVATE_KEY, and gateways publish public keys: set it there.")
        elif not set(keys) <= set(public_keys):
            agree = False
            yield wrong(
                process,
                f"signs webhooks with {keys[0]}, which gateways with the settings of this command do "
                "not publish: receivers refuse its posts. Add it to A2A_WEBHOOK_PUBLIC_KEYS.",
            )
    if agree:
        yield ok("signatures", "watchers sign with published keys")


def same_settings(survey: Survey) -> Iterator[Finding]:
    """Check that gateways, workers and watchers have the same settings."""
    workers = {node: report["settings"] for node, report in reporting(survey)}
    settings_of = dict(workers)
    if not isinstance(survey.watchers, str):
        settings_of |= {f"watcher {report['watcher']}": report["settings"] for report in survey.watchers}
    local = visible_settings(survey.settings)
    agree = True
    for process, other_settings in sorted(settings_of.items()):
        if other_settings.get("key_prefix", survey.settings.key_prefix) != survey.settings.key_prefix:
            agree = False
            yield _another_fleet(survey, process, other_settings["key_prefix"])
            continue
        unused_names = OWN_TO_A_PROCESS | (NOT_OF_WORKERS if process in workers else set())
        for name in sorted((local.keys() | other_settings.keys()) - unused_names):
            if local.get(name) != other_settings.get(name):
                agree = False
                yield wrong(
                    process,
                    f"{ENV_PREFIX}{name.upper()} is {other_settings.get(name)!r} there, and "
                    f"{local.get(name)!r} here: make them equal.",
                )
    if settings_of and agree:
        yield ok("settings", "workers, watchers and this command have equal settings")


def _another_fleet(survey: Survey, worker: str, key_prefix: str) -> Finding:
    """Return the finding about a worker of another fleet. Fleets may share a broker, but not a queue."""
    text = (
        f"belongs to another fleet: A2A_KEY_PREFIX is {key_prefix!r} there, and {survey.settings.key_prefix!r} here. "
    )
    shared_queues = set(survey.queues.values()) & set(survey.workers[worker]["queues"])
    if not shared_queues:
        return note(worker, text + "It consumes other queues than the agents of this fleet.")
    return wrong(
        worker,
        f"{text}The fleets share {', '.join(sorted(map(str, shared_queues)))}. Make the prefixes equal, or give each "
        "fleet separate queues: a worker returns messages of the other fleet to the queue.",
    )


def gateway(survey: Survey) -> Iterator[Finding]:
    """Check that the gateway reports that it is ready."""
    answer = survey.gateway_health
    if isinstance(answer, str):
        level: Level = "wrong" if survey.gateway_named else "note"
        yield Finding(level, "gateway", f"no gateway at {survey.gateway} ({answer}): pass its address with --url")
    elif answer.get("status") == "ok":
        yield ok("gateway", f"{survey.gateway} is ready")
    else:
        missing = "; ".join(f"{name}: {state}" for name, state in answer.items() if name != "status" and state != "ok")
        yield wrong("gateway", f"{survey.gateway} is not ready: {missing or answer}")
