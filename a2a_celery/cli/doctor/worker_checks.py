"""Checks of the workers and of the agents that they serve."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...telemetry.versions import versions as installed
from .finding import Finding, note, ok, wrong
from .survey import Survey, reporting


def workers(found: Survey) -> Iterator[Finding]:
    """Check that workers reply, and list their agents."""
    if isinstance(found.broker, str):
        return
    for worker in found.announced:
        yield note(
            worker["worker"],
            f"consumes {', '.join(worker['queues']) or 'no queue'}, and Celery's remote control does not reach it: "
            "nor do revokes, a2a drain and this command. Set worker_enable_remote_control, on a broker with fanout.",
        )
    if not found.workers and not found.announced:
        yield wrong(
            "workers",
            "none answers: start one with celery -A … worker. "
            "(One of the solo pool answers between two runs; see --timeout.)",
        )
    for node, report in sorted(found.workers.items()):
        if "pool" not in report:
            yield note(node, "does not report: its app has no A2A, or that of another version")
        elif report.get("error"):
            yield wrong(node, f"its settings can't be used: {report['error']}")
        elif report["store"]["error"]:
            yield wrong(node, f"can't reach the store: {report['store']['error']}")
        elif not isinstance(found.store, str) and report["store"]["identity"] != found.store.identity:
            yield wrong(node, "has another store than this command: see A2A_STORE_URL in both places.")
        else:
            queues = ", ".join(report["queues"]) or "no queue"
            yield ok(node, f"{report['pool']}, consumes {queues}, has {_agents(found, report)}")
        if report.get("drained"):
            left = ", ".join(report["drained"])
            yield note(node, f"is drained, and takes nothing from {left}: a2a drain --worker {node} --undo ends that.")


def _agents(found: Survey, report: Mapping[str, Any]) -> str:
    missing = found.queues.keys() - set(report["agents"])
    return f"all agents but {', '.join(sorted(missing))}" if missing else "all agents"


def agents(found: Survey) -> Iterator[Finding]:
    """Check that each agent has workers, and that all consumers of its queue have the agent."""
    if isinstance(found.broker, str) or not found.workers:
        return
    served = 0
    for agent, queue in found.queues.items():
        consuming = [(node, report) for node, report in reporting(found) if queue in report["queues"]]
        if queue is None:
            yield note(f"agent {agent}", "its options name an exchange and no queue: not looked at")
        elif not consuming and any(queue in worker["queues"] for worker in found.announced):
            continue  # whether that worker has the agent, it cannot be asked
        elif not consuming:
            yield wrong(
                f"agent {agent}", f"no worker that reports consumes its queue {queue}: celery -A … worker -Q {queue}"
            )
        else:
            without = [node for node, report in consuming if agent not in report["agents"]]
            if without:
                yield wrong(
                    f"agent {agent}",
                    f"{', '.join(without)} consumes its queue {queue} and does "
                    "not have it: what comes there is REJECTED. Give it the same code, or another queue.",
                )
            served += not without
    if served:
        yield ok("agents", f"{served} of {len(found.queues)} have workers")


def imports(found: Survey) -> Iterator[Finding]:
    """Report agents whose code cannot be imported here. A worker that has an agent could import it at its start."""
    for agent, error in found.import_errors.items():
        if any(agent in report["agents"] for _, report in reporting(found)):
            yield note(f"agent {agent}", f"{error}. Workers have it, so this matters only where a worker is to start.")
        else:
            yield wrong(f"agent {agent}", f"{error}. No worker starts like this: install or correct it.")


def cancelling(found: Survey) -> Iterator[Finding]:
    """Report how a cancel works on each worker's pool."""
    grace = f"{found.settings.cancel_grace:g} s"
    for node, report in reporting(found):
        if report["pool"] == "prefork":
            yield ok(node, f"a cancel has force: an agent that ignores it is ended after {grace}")
        else:
            yield note(
                node,
                f"a cancel is cooperative on the pool {report['pool']}: an agent that ignores "
                f"it is left behind after {grace}. Only prefork has force.",
            )
        if report["abandoned"]:
            runs = ", ".join(report["abandoned"])
            yield note(
                node, f"agents that ignored that they were stopped still run: {runs}. Restart it to be rid of them."
            )


def versions(found: Survey) -> Iterator[Finding]:
    """Check that workers and watchers have the versions that are installed here."""
    theirs = {node: report.get("versions") for node, report in reporting(found)}
    if not isinstance(found.watchers, str):
        theirs |= {f"watcher {said['watcher']}": said.get("versions") for said in found.watchers}
    here, agree = installed(), True
    for who, said in sorted(theirs.items()):
        if said == here:
            continue
        agree = False
        differing = [name for name in here if (said or {}).get(name) != here[name]]
        there = ", ".join(f"{name} {said.get(name) or '?'}" for name in differing) if said else "an older release"
        ours = ", ".join(f"{name} {here[name]}" for name in differing)
        yield wrong(who, f"has {there}, here is {ours}: finish the roll-out, or install the same.")
    if theirs and agree:
        yield ok("versions", ", ".join(f"{name} {version}" for name, version in here.items()) + ", everywhere")


def results(found: Survey) -> Iterator[Finding]:
    """Report a configuration that hides results of Celery tasks from watchers."""
    plain = ", ".join(agent for agent, work in found.work.items() if work.plain)
    if not plain:
        return
    if found.unreadable_results:
        yield note(
            "results",
            f"exposed tasks ({plain}) may need results that watchers can read, and {found.unreadable_results}. Until "
            "then a task that begins a chain, group or chord fails, and what a worker without this package did is not "
            "known.",
        )
    elif found.ignores_results:
        yield note(
            "results",
            f"task_ignore_result is set: an exposed task ({plain}) that begins a chain, group or chord fails unless "
            "the last task of that has ignore_result=False.",
        )


def events(found: Survey) -> Iterator[Finding]:
    """Check that workers send Celery events, for Flower and other monitors."""
    silent = [node for node, report in reporting(found) if not report.get("events")]
    if silent:
        yield note("events", f"{', '.join(silent)} sends none: Flower shows nothing of it. Start it with -E.")
    elif reporting(found):
        yield ok("events", "all workers send them, for Flower")
