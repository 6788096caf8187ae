"""Checks of the workers and of the agents that they serve."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...telemetry.versions import versions as installed
from .survey import Finding, Survey, note, ok, reporting, wrong


def workers(survey: Survey) -> Iterator[Finding]:
    """Check that workers reply, and list their agents."""
    if isinstance(survey.broker, str):
        return
    for worker in survey.announced:
        yield note(
            worker["worker"],
            f"consumes {', '.join(worker['queues']) or 'no queue'}, and has no remote control: "
            "revokes, a2a drain and this command do not reach it. Set worker_enable_remote_control, "
            "on a broker with fanout.",
        )
    if not survey.workers and not survey.announced:
        yield wrong(
            "workers",
            "no worker replies: start one with celery -A … worker. "
            "(A worker on the solo pool replies between two runs; see --timeout.)",
        )
    for node, report in sorted(survey.workers.items()):
        if "pool" not in report:
            yield note(
                node,
                "sends no report: its app has no A2A object, or it runs another version of this package. If it serves "
                "agents, install the version of this command there.",
            )
        elif report.get("error"):
            yield wrong(node, f"its settings are invalid: {report['error']}")
        elif report["store"]["error"]:
            yield wrong(node, f"cannot reach the store: {report['store']['error']}")
        elif not isinstance(survey.store, str) and report["store"]["identity"] != survey.store.identity:
            yield wrong(node, "uses a different store from this command: set the same A2A_STORE_URL for both.")
        else:
            queues = ", ".join(report["queues"]) or "no queue"
            yield ok(node, f"{report['pool']}, consumes {queues}, has {_agents(survey, report)}")
        if report.get("drained"):
            drained_queues = ", ".join(report["drained"])
            yield note(
                node, f"is drained and does not consume {drained_queues}: a2a drain --worker {node} --undo ends it."
            )


def _agents(survey: Survey, report: Mapping[str, Any]) -> str:
    missing = survey.queues.keys() - set(report["agents"])
    return f"all agents but {', '.join(sorted(missing))}" if missing else "all agents"


def agents(survey: Survey) -> Iterator[Finding]:
    """Check that each agent has workers, and that all consumers of the agent's queue have the agent."""
    if isinstance(survey.broker, str) or not survey.workers:
        return
    served_count = 0
    for agent, queue in survey.queues.items():
        consuming = [(node, report) for node, report in reporting(survey) if queue in report["queues"]]
        if queue is None:
            yield note(f"agent {agent}", "not checked, because its options name an exchange and no queue")
        elif not consuming and any(queue in worker["queues"] for worker in survey.announced):
            continue  # a worker that remote control cannot reach does not report its agents
        elif not consuming and any(queue in report.get("drained", ()) for _, report in reporting(survey)):
            yield wrong(
                f"agent {agent}",
                f"only drained workers have its queue {queue}: celery -A … a2a drain --queue {queue} --undo",
            )
        elif not consuming:
            yield wrong(
                f"agent {agent}", f"no worker that reports consumes its queue {queue}: celery -A … worker -Q {queue}"
            )
        else:
            without = [node for node, report in consuming if agent not in report["agents"]]
            if without:
                yield wrong(
                    f"agent {agent}",
                    f"workers without this agent consume its queue {queue}, and reject its runs: {', '.join(without)}. "
                    "Deploy the agent's code there, or give the agent another queue.",
                )
            served_count += not without
    if served_count:
        yield ok("agents", f"{served_count} of {len(survey.queues)} have workers")


def imports(survey: Survey) -> Iterator[Finding]:
    """Report agents whose code cannot be imported on this machine. A worker imports the code of its agents when it
    starts."""
    for agent, error in survey.import_errors.items():
        if any(agent in report["agents"] for _, report in reporting(survey)):
            yield note(f"agent {agent}", f"{error}. Running workers have the agent, but no worker can start here.")
        else:
            yield wrong(f"agent {agent}", f"{error}. No worker can start: install or correct the module.")


def cancelling(survey: Survey) -> Iterator[Finding]:
    """Report how the pool of each worker handles a cancellation."""
    grace = f"{survey.settings.cancel_grace:g} s"
    for node, report in reporting(survey):
        if report["pool"] == "prefork":
            yield ok(node, f"enforces cancellation: kills an agent that runs {grace} after a cancel")
        else:
            yield note(
                node,
                f"cannot enforce cancellation on the pool {report['pool']}: abandons an agent that runs {grace} after "
                "a cancel. Use the pool prefork to enforce cancellation.",
            )
        if report["abandoned"]:
            runs = ", ".join(report["abandoned"])
            yield note(node, f"abandoned agents still run: {runs}. Restart the worker to end them.")


def versions(survey: Survey) -> Iterator[Finding]:
    """Check that workers and watchers run the package versions that are installed on this machine."""
    versions_of = {node: report.get("versions") for node, report in reporting(survey)}
    if not isinstance(survey.watchers, str):
        versions_of |= {f"watcher {other['watcher']}": other.get("versions") for other in survey.watchers}
    local, agree = installed(), True
    for process, other in sorted(versions_of.items()):
        if other == local:
            continue
        agree = False
        differing = [name for name in local if (other or {}).get(name) != local[name]]
        their_versions = (
            ", ".join(f"{name} {other.get(name) or '?'}" for name in differing) if other else "an older release"
        )
        text = ", ".join(f"{name} {local[name]}" for name in differing)
        yield wrong(
            process, f"has {their_versions}, this command has {text}: finish the roll-out, or install equal versions."
        )
    if versions_of and agree:
        yield ok("versions", ", ".join(f"{name} {version}" for name, version in local.items()) + ", everywhere")


def agent_versions(survey: Survey) -> Iterator[Finding]:
    """Report the agent versions that have workers or open tasks."""
    workers = {(worker.agent, worker.version): set[str]() for worker in survey.version_workers}
    for worker in survey.version_workers:
        workers[worker.agent, worker.version].add(worker.worker)
    for agent, version in sorted({*workers, *survey.version_tasks}):
        nodes, tasks = workers.get((agent, version), set()), survey.version_tasks.get((agent, version), 0)
        if nodes:
            yield ok(f"agent {agent}", f"version {version} has open tasks: {tasks}, and workers: {len(nodes)}")
        else:
            yield note(
                f"agent {agent}",
                f"tasks that began with version {version}, which no worker has: {tasks}. Other versions continue them, "
                f"or fail them if their steps differ. To prevent failures, start a worker with version {version}.",
            )


def results(survey: Survey) -> Iterator[Finding]:
    """Report a configuration that hides the results of Celery tasks from watchers."""
    plain = ", ".join(agent for agent, work in survey.work.items() if work.plain)
    if not plain:
        return
    if survey.unreadable_results:
        yield note(
            "results",
            f"exposed tasks ({plain}) may need results that watchers can read, and {survey.unreadable_results}. Until "
            "then a task that begins a chain, group or chord fails, and results of workers without this package are "
            "unknown.",
        )
    elif survey.ignores_results:
        yield note(
            "results",
            f"task_ignore_result is set: an exposed task ({plain}) that begins a chain, group or chord fails unless "
            "its last task has ignore_result=False.",
        )


def events(survey: Survey) -> Iterator[Finding]:
    """Check that workers send Celery events, for Flower and other monitors."""
    silent = [node for node, report in reporting(survey) if not report.get("events")]
    if silent:
        yield note("events", f"workers send no events to Flower: {', '.join(silent)}. Start them with -E.")
    elif reporting(survey):
        yield ok("events", "all workers send events to Flower")
