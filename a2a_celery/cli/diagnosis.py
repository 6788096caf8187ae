"""What is right and what isn't: checks, each a function from what was found to plain lines.

A new one is a function here and a place in `CHECKS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..config import ENV_PREFIX, shown
from ..sealing import sealer_of
from .survey import Survey

OLDEST = (6, 2)
"""The Redis whose commands the scripts use."""

MAX_SKEW = 2.0
"""Seconds that clocks may differ: expiry and scheduled times are told by the clock of the machine that looks."""

OWN_TO_A_PROCESS = {"grpc_port", "grpc_host", "grpc_public_address", "public_url", "max_request_bytes"}
"""Settings that only gateways use."""

NOT_OF_WORKERS = {"allow_networks"}
"""Settings that gateways and watchers use."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: "ok"; "note", worth knowing; "wrong", something does not work as promised."""

    level: Literal["ok", "note", "wrong"]
    about: str
    text: str

    def __str__(self) -> str:
        return f"{self.level:<5}  {self.about}: {self.text}"


def _ok(about: str, text: str) -> Finding:
    return Finding("ok", about, text)


def _note(about: str, text: str) -> Finding:
    return Finding("note", about, text)


def _wrong(about: str, text: str) -> Finding:
    return Finding("wrong", about, text)


Check = Callable[[Survey], Iterator[Finding]]


def store(found: Survey) -> Iterator[Finding]:
    """The server, and whether it keeps what it is given."""
    server = found.store
    if isinstance(server, str):
        yield _wrong("store", f"{server}. Nothing works without it: see A2A_STORE_URL.")
        return
    name = f"{server.kind} {server.version}"
    yield _ok("store", f"{name}, answers in {server.answered_in * 1000:.1f} ms")
    version = tuple(int(part) for part in server.version.split(".")[:2] if part.isdigit())
    if server.kind == "Redis" and version < OLDEST:
        yield _wrong("store", f"{name} is too old: at least {OLDEST[0]}.{OLDEST[1]}.")
    if not server.primary:
        yield _wrong("store", "it is a replica, which can't be written: name the primary in A2A_STORE_URL.")
    if server.cluster:
        yield _wrong("store", "it is a cluster, whose nodes each have a part: use one primary.")
    if server.evicts == "noeviction":
        yield _ok("store", "maxmemory-policy is noeviction")
    elif server.max_memory:
        yield _wrong(
            "store", f"maxmemory-policy is {server.evicts}: tasks vanish when memory is short. Set noeviction."
        )
    else:
        yield _note(
            "store",
            f"maxmemory-policy is {server.evicts}; there is no maxmemory, so nothing goes. "
            "Set noeviction all the same.",
        )
    if server.append_only:
        yield _ok("store", "appendonly is yes")
    else:
        yield _note("store", "appendonly is no: its tasks may not outlive it. Set appendonly yes.")


def clocks(found: Survey) -> Iterator[Finding]:
    """This machine's clock and the workers', by the store's."""
    ahead = {node: report["store"]["ahead"] for node, report in _reporting(found) if "ahead" in report["store"]}
    if not isinstance(found.store, str):
        ahead["this machine"] = found.store.ahead
    for who, seconds in ahead.items():
        if abs(seconds) > MAX_SKEW:
            way = "ahead of" if seconds > 0 else "behind"
            yield _wrong(
                "clock",
                f"{who} is {abs(seconds):.1f} s {way} the store's: use NTP. "
                "Messages expire, or begin, at the wrong time.",
            )
    if ahead and all(abs(seconds) <= MAX_SKEW for seconds in ahead.values()):
        yield _ok("clock", f"within {max(map(abs, ahead.values())):.2f} s of the store's")


def broker(found: Survey) -> Iterator[Finding]:
    """Whether it takes connections."""
    if found.broker:
        yield _wrong("broker", f"{found.broker}. Tasks wait in the store: see CELERY_BROKER_URL.")
    else:
        yield _ok("broker", "reached")


def workers(found: Survey) -> Iterator[Finding]:
    """Whether any answers, and what each has."""
    if found.broker:
        return
    if not found.workers:
        yield _wrong(
            "workers",
            "none answers: start one with celery -A … worker. "
            "(One of the solo pool answers between two runs; see --timeout.)",
        )
    for node, report in sorted(found.workers.items()):
        if "pool" not in report:
            yield _note(node, "does not report: its app has no A2A, or that of another version")
        elif report.get("error"):
            yield _wrong(node, f"its settings can't be used: {report['error']}")
        elif report["store"]["error"]:
            yield _wrong(node, f"can't reach the store: {report['store']['error']}")
        elif not isinstance(found.store, str) and report["store"]["identity"] != found.store.identity:
            yield _wrong(node, "has another store than this command: see A2A_STORE_URL in both places.")
        else:
            queues = ", ".join(report["queues"]) or "no queue"
            yield _ok(node, f"{report['pool']}, consumes {queues}, has {_agents(found, report)}")


def _agents(found: Survey, report: Mapping[str, Any]) -> str:
    missing = found.queues.keys() - set(report["agents"])
    return f"all agents but {', '.join(sorted(missing))}" if missing else "all agents"


def agents(found: Survey) -> Iterator[Finding]:
    """Whether somebody does the work of each, and nobody takes it that can't."""
    if found.broker or not found.workers:
        return
    served = 0
    for agent, queue in found.queues.items():
        consuming = [(node, report) for node, report in _reporting(found) if queue in report["queues"]]
        if queue is None:
            yield _note(f"agent {agent}", "its options name an exchange and no queue: not looked at")
        elif not consuming:
            yield _wrong(
                f"agent {agent}", f"no worker that reports consumes its queue {queue}: celery -A … worker -Q {queue}"
            )
        else:
            without = [node for node, report in consuming if agent not in report["agents"]]
            if without:
                yield _wrong(
                    f"agent {agent}",
                    f"{', '.join(without)} consumes its queue {queue} and does "
                    "not have it: what comes there is REJECTED. Give it the same code, or another queue.",
                )
            served += not without
    if served:
        yield _ok("agents", f"{served} of {len(found.queues)} have workers")


def cancelling(found: Survey) -> Iterator[Finding]:
    """What a cancel can do on each worker's pool."""
    grace = f"{found.settings.cancel_grace:g} s"
    for node, report in _reporting(found):
        if report["pool"] == "prefork":
            yield _ok(node, f"a cancel has force: an agent that ignores it is ended after {grace}")
        else:
            yield _note(
                node,
                f"a cancel is cooperative on the pool {report['pool']}: an agent that ignores "
                f"it is left behind after {grace}. Only prefork has force.",
            )
        if report["left_behind"]:
            runs = ", ".join(report["left_behind"])
            yield _note(
                node, f"agents that ignored that they were stopped still run: {runs}. Restart it to be rid of them."
            )


def watchers(found: Survey) -> Iterator[Finding]:
    """Whether there is one."""
    if isinstance(found.watchers, str):
        return
    if not found.watchers:
        yield _wrong(
            "watchers",
            "none: runs of lost workers stay open, and what the broker did not take "
            "is never run. Start celery -A … a2a watcher.",
        )
    else:
        yield _ok("watchers", ", ".join(said["watcher"] for said in found.watchers))


def webhooks(found: Survey) -> Iterator[Finding]:
    """Whether they hear of what they are owed."""
    failing, dead = found.webhooks.failing, found.webhooks.dead
    if failing:
        yield _note("webhooks", f"{failing} can't be reached now: celery -A … a2a deliveries says why.")
    if dead:
        yield _note(
            "webhooks",
            f"{dead} given up: celery -A … a2a deliveries list --dead says why; "
            "a2a deliveries replay --all posts what they have missed.",
        )
    if found.webhooks.secrets and not (failing or dead):
        yield _ok("webhooks", "none waits for one that fails, none was given up")


def secrets(found: Survey) -> Iterator[Finding]:
    """Whether watchers can open the webhooks' configs that there are, and those that gateways will make."""
    ours = sealer_of(found.settings)
    known = ours.fingerprints if ours is not None else frozenset()
    where = "it is set here as in the gateways" if ours is not None else "configs are sealed with one"
    if found.webhooks.secrets - known:
        yield _wrong(
            "secret key",
            f"A2A_SECRET_KEY {'lacks one' if known else 'is not set here'}, with which webhooks in the store "
            "are sealed: no gateway starts so. Add it behind the one that is used.",
        )
    wanted = found.webhooks.secrets | ({ours.fingerprint} if ours is not None else set())
    others = () if isinstance(found.watchers, str) else found.watchers
    lacking = False
    for said in others:
        who, theirs = f"watcher {said['watcher']}", set(said.get("secrets", ()))
        if wanted and not theirs:
            yield _wrong(who, f"has no A2A_SECRET_KEY, and {where}: it delivers nothing to webhooks. Set it there.")
        elif wanted - theirs:
            yield _wrong(
                who,
                "its A2A_SECRET_KEY does not open all webhooks that there are, or those that a gateway makes which is "
                "set up as this command: it fails to deliver these. Make it the same.",
            )
        lacking |= bool(wanted - theirs)
    if wanted and others and not lacking:
        yield _ok("secret key", "opens all webhooks, in watchers too")


def same_settings(found: Survey) -> Iterator[Finding]:
    """Gateways, workers and watchers must agree."""
    workers = {node: report["settings"] for node, report in _reporting(found)}
    others = dict(workers)
    if not isinstance(found.watchers, str):
        others |= {f"watcher {said['watcher']}": said["settings"] for said in found.watchers}
    ours = shown(found.settings)
    agree = True
    for who, theirs in sorted(others.items()):
        unused = OWN_TO_A_PROCESS | (NOT_OF_WORKERS if who in workers else set())
        for name in sorted((ours.keys() | theirs.keys()) - unused):
            if ours.get(name) != theirs.get(name):
                agree = False
                yield _wrong(
                    who,
                    f"{ENV_PREFIX}{name.upper()} is {theirs.get(name)!r} there, and "
                    f"{ours.get(name)!r} here: make them the same.",
                )
    if others and agree:
        yield _ok("settings", "the same in workers, watchers and here")


def gateway(found: Survey) -> Iterator[Finding]:
    """Whether it is ready, by its own word."""
    says = found.gateway_says
    if isinstance(says, str):
        level: Literal["note", "wrong"] = "wrong" if found.gateway_named else "note"
        yield Finding(level, "gateway", f"none at {found.gateway} ({says}); name yours with --url")
    elif says.get("status") == "ok":
        yield _ok("gateway", f"{found.gateway} is ready")
    else:
        missing = "; ".join(f"{name}: {state}" for name, state in says.items() if name != "status" and state != "ok")
        yield _wrong("gateway", f"{found.gateway} is not ready: {missing or says}")


def _reporting(found: Survey) -> list[tuple[str, Mapping[str, Any]]]:
    """The workers whose report is whole."""
    return [(node, report) for node, report in sorted(found.workers.items()) if "settings" in report]


CHECKS: tuple[Check, ...] = (
    store, broker, workers, agents, cancelling, watchers, secrets, webhooks, same_settings, clocks, gateway,
)  # fmt: skip


def diagnosis(found: Survey) -> list[Finding]:
    """What all checks say."""
    return [finding for check in CHECKS for finding in check(found)]
