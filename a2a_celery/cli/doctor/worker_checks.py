"""Checks of the workers and of the agents that they serve."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...telemetry.versions import versions as installed
from .survey import Finding, Survey, note, ok, reporting, wrong


def workers(found: Survey) -> Iterator[Finding]:
    """Check that workers reply, and list their agents."""
    if isinstance(found.broker, str):
        return
    for worker in found.announced:
        yield note(
            worker["worker"],
            f"consumes {', '.join(worker['queues']) or 'no queue'}, and has no remote control: "
            "revokes, a2a drain and this command do not reach it. Set worker_enable_remote_control, "
            "on a broker with fanout.",
        )
    if not found.workers and not found.announced:
        yield wrong(
            "workers",
            "none replies: start one with celery -A … worker. "
            "(A worker on the solo pool replies between two runs; see --timeout.)",
        )
    for node, report in sorted(found.workers.items()):
        if "pool" not in report:
            yield note(node, "does not report: its app has no A2A, or that of another version")
        elif report.get("error"):
            yield wrong(node, f"its settings are invalid: {report['error']}")
        elif report["store"]["error"]:
            yield wrong(node, f"cannot reach the store: {report['store']['error']}")
        elif not isinstance(found.store, str) and report["store"]["identity"] != found.store.identity:
            yield wrong(node, "uses a different store from this command: see A2A_STORE_URL in both places.")
        else:
            queues = ", ".join(report["queues"]) or "no queue"
            yield ok(node, f"{report['pool']}, consumes {queues}, has {_agents(found, report)}")
        if report.get("drained"):
            left = ", ".join(report["drained"])
            yield note(node, f"is drained and does not consume {left}: a2a drain --worker {node} --undo ends it.")


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
            yield note(f"agent {agent}", "not checked, because its options name an exchange and no queue")
        elif not consuming and any(queue in worker["queues"] for worker in found.announced):
            continue  # a worker that remote control cannot reach does not report its agents
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
                    "not have it: runs there are REJECTED. Give it the same code, or another queue.",
                )
            served += not without
    if served:
        yield ok("agents", f"{served} of {len(found.queues)} have workers")


def imports(found: Survey) -> Iterator[Finding]:
    """Report agents whose code cannot be imported here. A worker that has an agent could import its code when the
    worker started."""
    for agent, error in found.import_errors.items():
        if any(agent in report["agents"] for _, report in reporting(found)):
            yield note(f"agent {agent}", f"{error}. Running workers have it; a worker could not start here.")
        else:
            yield wrong(f"agent {agent}", f"{error}. No worker can start: install or correct it.")


def cancelling(found: Survey) -> Iterator[Finding]:
    """Report how a cancel works on the pool of each worker."""
    grace = f"{found.settings.cancel_grace:g} s"
    for node, report in reporting(found):
        if report["pool"] == "prefork":
            yield ok(node, f"a cancel is enforced: an agent that ignores it is killed after {grace}")
        else:
            yield note(
                node,
                f"a cancel is cooperative on the pool {report['pool']}: an agent that ignores "
                f"it is abandoned after {grace}. Only prefork enforces a cancel.",
            )
        if report["abandoned"]:
            runs = ", ".join(report["abandoned"])
            yield note(node, f"abandoned agents still run: {runs}. Restart the worker to end them.")


def versions(found: Survey) -> Iterator[Finding]:
    """Check that workers and watchers run the versions that are installed here."""
    theirs = {node: report.get("versions") for node, report in reporting(found)}
    if not isinstance(found.watchers, str):
        theirs |= {f"watcher {other['watcher']}": other.get("versions") for other in found.watchers}
    here, agree = installed(), True
    for who, other in sorted(theirs.items()):
        if other == here:
            continue
        agree = False
        differing = [name for name in here if (other or {}).get(name) != here[name]]
        there = ", ".join(f"{name} {other.get(name) or '?'}" for name in differing) if other else "an older release"
        ours = ", ".join(f"{name} {here[name]}" for name in differing)
        yield wrong(who, f"has {there}, here is {ours}: finish the roll-out, or install equal versions.")
    if theirs and agree:
        yield ok("versions", ", ".join(f"{name} {version}" for name, version in here.items()) + ", everywhere")


def agent_versions(found: Survey) -> Iterator[Finding]:
    """Report the versions of agents that have workers or open tasks."""
    workers = {(one.agent, one.version): set[str]() for one in found.version_workers}
    for one in found.version_workers:
        workers[one.agent, one.version].add(one.worker)
    for agent, version in sorted({*workers, *found.version_tasks}):
        nodes, tasks = workers.get((agent, version), set()), found.version_tasks.get((agent, version), 0)
        if nodes:
            yield ok(f"agent {agent}", f"version {version} has open tasks: {tasks}, and workers: {len(nodes)}")
        else:
            yield note(
                f"agent {agent}",
                f"tasks that began with version {version}, which no worker has: {tasks}. Other versions continue them, "
                f"or fail them if their steps differ. To prevent failures, start a worker with version {version}.",
            )


def results(found: Survey) -> Iterator[Finding]:
    """Report a configuration that hides the results of Celery tasks from watchers."""
    plain = ", ".join(agent for agent, work in found.work.items() if work.plain)
    if not plain:
        return
    if found.unreadable_results:
        yield note(
            "results",
            f"exposed tasks ({plain}) may need results that watchers can read, and {found.unreadable_results}. Until "
            "then a task that begins a chain, group or chord fails, and results of workers without this package are "
            "unknown.",
        )
    elif found.ignores_results:
        yield note(
            "results",
            f"task_ignore_result is set: an exposed task ({plain}) that begins a chain, group or chord fails unless "
            "its last task has ignore_result=False.",
        )


def events(found: Survey) -> Iterator[Finding]:
    """Check that workers send Celery events, for Flower and other monitors."""
    silent = [node for node, report in reporting(found) if not report.get("events")]
    if silent:
        yield note("events", f"{', '.join(silent)} sends none for Flower. Start it with -E.")
    elif reporting(found):
        yield ok("events", "all workers send them")
