"""Checks of ``a2a doctor``.

To add a check, write a function and add it to `CHECKS`. The JSON output identifies a check by the name of its function.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import fields, replace

from ...crypto.sealing import sealer_of
from ...features.commands import CHECKS as FEATURE_CHECKS
from ...gateway.cards import published_keys
from ...gateway.health import NO_AUTHENTICATION
from ...gateway.operator.role import ANY_CALLER
from ...settings import ENV_PREFIX, Settings, visible_settings
from ...settings.urls import url_address
from ...store.admin.schema import SCHEMA
from ...telemetry.versions import versions as installed_versions
from ..output import duration
from .findings import Finding, Findings, all_ok, matching, note, ok, wrong
from .survey import MAX_WAITING, Report, Survey, consumed_queues

OLDEST = [6, 2]
"""Oldest Redis version that supports the commands used in the scripts."""

FILLING, NEARLY_FULL = 0.75, 0.9
"""Shares of maxmemory from which the level is "note" or "wrong". The setting `store_watermark` replaces the second."""

MAX_SKEW = 2.0
"""Maximum difference in seconds between clocks, with which machines compare expiry and scheduled times."""

MAX_DELAY = 60.0
"""Seconds that a task may be due for the archive."""

MAX_WAIT = 60.0
"""Seconds for which the oldest run of a queue may wait, even if there are few slots."""

RUNS_PER_SLOT = 2
"""Number of waiting runs for each slot that is normal if runs take long. With more, a new run waits for longer than the
runs before it take."""

NOT_OF_WATCHERS = {"public_url", "max_request_bytes", "ui", "operators"} | {
    f.name for f in fields(Settings) if f.name.startswith(("auth_", "grpc_"))
}
"""Settings that only gateways use."""

NOT_OF_WORKERS = NOT_OF_WATCHERS | {"allow_networks", "archive_retention"}
"""Settings that workers do not use."""


def configuration(survey: Survey) -> Findings:
    yield from (ok("configuration", f"{about}: {line}") for about, line in survey.lines.items() if line)
    if not survey.lines["authentication"]:
        yield note("configuration", f"authentication: {NO_AUTHENTICATION}")
        if ANY_CALLER in survey.settings.operators:
            effect = "without authentication, so every client can read and change the tasks of all owners"
            yield note("operators", f"A2A_OPERATORS contains {ANY_CALLER} {effect}. Set up authentication.")


def store(survey: Survey) -> Findings:
    server, replicas = survey.store, survey.settings.store_wait_replicas
    if survey.store_error:
        yield wrong("store", f"{survey.store_error}. Gateways, workers and watchers need it: check A2A_STORE_URL.")
    if server is None:
        return
    name, policy = f"{server.kind} {server.version}", f"maxmemory-policy is {server.evicts}"
    is_old = server.kind == "Redis" and [int(part) for part in server.version.split(".")[:2] if part.isdigit()] < OLDEST
    evicts, later = server.evicts != "noeviction", "without maxmemory it has no effect"
    counts = f"the store has {server.replicas} replicas, and a2a_store_wait_replicas is {replicas}"
    yield from matching(
        "store",
        (ok, True, f"{name}, answers in {server.answered_in * 1000:.1f} ms"),
        (wrong, is_old, f"{name} is too old: at least {OLDEST[0]}.{OLDEST[1]}."),
        (wrong, not server.primary, "A2A_STORE_URL names a read-only replica: name the primary."),
        (ok, not evicts, policy),
        (wrong, evicts and server.max_memory, f"{policy}: Redis may evict tasks. Set noeviction."),
        (note, evicts and not server.max_memory, f"{policy}; {later}. Set noeviction for a later maxmemory."),
        (ok, server.append_only, "appendonly is yes"),
        (note, not server.append_only, "appendonly is no: a restart may lose tasks. Set appendonly yes."),
        (wrong, server.replicas < replicas, f"{counts}: start more of them."),
        (wrong, server.unsaved, f"the server could not write {server.unsaved}: check the server's log and disk."),
    )


def memory(survey: Survey) -> Findings:
    if survey.store is None or not survey.store.max_memory:
        return
    share, watermark = survey.store.used_memory / survey.store.max_memory, survey.settings.store_watermark
    usage = f"{share:.0%} of maxmemory ({survey.store.max_memory / 2**20:,.0f} MiB) are used"
    nearly_full = watermark or NEARLY_FULL
    effect = f"above {watermark:.0%} no message is accepted" if watermark else "a full store refuses new tasks"
    yield from matching(
        "memory",
        (wrong, share >= nearly_full, f"{usage}: {effect}. Raise maxmemory, or lower the retention."),
        (note, FILLING <= share < nearly_full, f"{usage}: raise maxmemory, or lower the retention."),
        (all_ok, True, usage),
    )


def start(survey: Survey) -> Findings:
    if survey.start_error:
        yield wrong("start", f"no gateway with the settings of this command starts: {survey.start_error}.")
    elif not survey.store_error:
        yield ok("start", f"the store has schema {SCHEMA}, and suits the settings of this command")


def archive(survey: Survey) -> Findings:
    metrics, place = survey.metrics, url_address(survey.settings.archive_url)
    if not place or survey.store_error:
        return
    due, lag, refused = metrics.to_archive, metrics.archive_lag, metrics.archive_refused
    remedy = "They stay in the store: see the watchers' logs"
    elsewhere = ", ".join(name for name, report in survey.watchers.items() if report.get("archive", "") != place)
    yield from matching(
        "archive",
        (wrong, survey.archive_error, f"{survey.archive_error}. Until it works, ended tasks stay in the store."),
        (wrong, elsewhere, f"another archive or none: {elsewhere}. Set the same A2A_ARCHIVE_URL."),
        (wrong, lag > MAX_DELAY, f"{due} ended tasks are due, the oldest for {lag:.0f} s. {remedy}."),
        (wrong, refused, f"its database refuses {refused} tasks. {remedy}."),
        (all_ok, True, f"{due} ended tasks are due for it, none is late"),
    )


def broker(survey: Survey) -> Findings:
    server = survey.broker
    if isinstance(server, str):
        yield wrong("broker", f"{server}. Tasks wait in the store: see CELERY_BROKER_URL.")
        return
    yield ok("broker", f"reached: {server}")
    is_store = survey.store is not None and survey.store.identity.startswith(f"{server.info.get('run_id')}/")
    policy = server.info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction" and server.info.get("maxmemory") and not is_store:
        effect = "Redis may evict messages, which a watcher then publishes again"
        yield wrong("broker", f"maxmemory-policy is {policy}: {effect}. Set noeviction.")


def timeouts(survey: Survey) -> Findings:
    server = survey.broker
    if isinstance(server, str) or server.ack_timeout is None:
        return
    timeout, effect = f"visibility timeout ({server.ack_timeout:g} s)", ""
    if server.kind == "RabbitMQ":
        timeout = f"consumer_timeout ({server.ack_timeout:g} s, unless it was changed)"
        # Without this package, Celery treats the closed channel as an error of the program.
        effect = "closes the channel of the worker, which reconnects (a worker without this package exits), and "
    long = ", ".join(agent for agent, limit in survey.limits.items() if limit > server.ack_timeout)
    if long:
        yield note(
            "timeouts",
            f"runs of {long} may take longer than the broker's {timeout}: the broker then {effect}redelivers runs that "
            "are prefetched or acknowledged late, and workers drop the copies. Lower the time_limit of the agents, or "
            "raise the timeout.",
        )
    unlimited = ", ".join(agent for agent, limit in survey.limits.items() if not limit)
    longer = f". Agents without a time limit may take longer: {unlimited}" if unlimited else ""
    yield all_ok("timeouts", f"no agent has a time limit beyond the broker's {timeout}{longer}")


def workers(survey: Survey) -> Findings:
    if isinstance(survey.broker, str):
        return
    for worker in survey.announced:
        effect = "has no remote control: revokes, a2a drain and this command do not reach it"
        remedy = "Set worker_enable_remote_control, on a broker with fanout."
        yield note(worker["worker"], f"consumes {_queues(worker)}, and {effect}. {remedy}")
    if not survey.own_workers and not survey.announced:
        solo = "(A worker on the solo pool replies between two runs; see --timeout.)"
        yield wrong("workers", f"no worker replies: start one with celery -A … worker. {solo}")
    for node, report in survey.own_workers.items():
        yield _worker(survey, node, report)
        if drained := ", ".join(report.get("drained", ())):
            yield note(node, f"is drained and does not consume {drained}: a2a drain --worker {node} --undo ends it.")


def _worker(survey: Survey, node: str, report: Report) -> Finding:
    if "queues" not in report:
        return note(node, "sends no report: install the version of this command there.")
    if "pool" not in report:
        exposed = f"the exposed tasks {', '.join(report['agents'])}" if report["agents"] else "no exposed task"
        return ok(node, f"is a worker without this package, consumes {_queues(report)}, has {exposed}.")
    if report.get("error"):
        return wrong(node, f"its settings are invalid: {report['error']}")
    if report["store"]["error"]:
        return wrong(node, f"cannot reach the store: {report['store']['error']}")
    if survey.store is not None and report["store"]["identity"] != survey.store.identity:
        return wrong(node, "uses a different store from this command: set the same A2A_STORE_URL for both.")
    missing = ", ".join(sorted(survey.queues.keys() - set(report["agents"])))
    agents = f"all agents but {missing}" if missing else "all agents"
    names_are_unique = not isinstance(survey.broker, str) and survey.broker.kind == "RabbitMQ"
    unique = " No worker of the same name can join: start each with -n NAME@%h." if names_are_unique else ""
    return ok(node, f"{report['pool']}, consumes {_queues(report)}, has {agents}.{unique}")


def _queues(report: Report) -> str:
    return ", ".join(report["queues"]) or "no queue"


def other_fleets(survey: Survey) -> Findings:
    for node, report in survey.other_fleets.items():
        prefixes = f"{report['settings'].get('key_prefix')!r} there, {survey.settings.key_prefix!r} here"
        yield note(
            node,
            f"belongs to another fleet, with another store or A2A_KEY_PREFIX ({prefixes}). It consumes no queue of the "
            f"agents of this app: {', '.join(sorted(consumed_queues(report))) or 'none'}.",
        )


def versions(survey: Survey) -> Findings:
    local = installed_versions()
    for process, report in survey.processes.items():
        other = report.get("versions") or {}
        differing = [name for name in local if other.get(name) != local[name]]
        there = ", ".join(f"{name} {other.get(name) or '?'}" for name in differing) if other else "an older release"
        here = ", ".join(f"{name} {local[name]}" for name in differing)
        if differing:
            yield wrong(process, f"has {there}, this command has {here}: finish the roll-out, or make them equal.")
    if survey.processes:
        yield all_ok("versions", ", ".join(f"{name} {version}" for name, version in local.items()) + ", everywhere")


def agents(survey: Survey) -> Findings:
    if isinstance(survey.broker, str) or not survey.own_workers:
        return
    served_count, workers = 0, {node: report for node, report in survey.own_workers.items() if "queues" in report}
    for name, queue in survey.queues.items():
        about = f"agent {name}"
        consuming = {node: report for node, report in workers.items() if queue in report["queues"]}
        without = ", ".join(node for node, report in consuming.items() if name not in report["agents"])
        if queue is None:
            yield note(about, "not checked, because its options name an exchange and no queue")
        elif without:
            remedy = "Deploy the agent's code there, or give the agent another queue."
            yield wrong(about, f"workers that consume its queue {queue} reject its runs: {without}. {remedy}")
        elif consuming:
            served_count += 1
        elif any(queue in worker["queues"] for worker in survey.announced):
            continue  # a worker that remote control cannot reach does not report its agents
        elif any(queue in report.get("drained", ()) for report in survey.complete_workers.values()):
            remedy = f"celery -A … a2a drain --queue {queue} --undo"
            yield wrong(about, f"only drained workers have its queue {queue}: {remedy}")
        else:
            yield wrong(about, f"no worker that reports consumes its queue {queue}: celery -A … worker -Q {queue}")
    if served_count:
        yield ok("agents", f"{served_count} of {len(survey.queues)} have workers")


def backlogs(survey: Survey) -> Findings:
    reports = survey.complete_workers.values()
    for queue, waits in survey.waits.items():
        slots = sum(report.get("slots", 0) for report in reports if queue in report["queues"])
        if slots and max(waits) > MAX_WAIT and len(waits) > RUNS_PER_SLOT * slots:
            count = f"{'at least ' if len(waits) == MAX_WAITING else ''}{len(waits)} runs wait"
            load = f"the oldest for {duration(max(waits))}, for {slots} slot{'s' if slots > 1 else ''}"
            yield note(f"queue {queue}", f"{count}, {load}: add workers, or raise --concurrency. See a2a top.")
    if survey.own_workers and not survey.store_error:
        yield all_ok("queues", f"{sum(map(len, survey.waits.values())) or 'no'} runs wait for a worker")


def agent_versions(survey: Survey) -> Findings:
    tasks, nodes = survey.metrics.counted("version"), defaultdict[tuple[str, str], set[str]](set)
    for worker in survey.version_workers:
        nodes[worker.agent, worker.code_version].add(worker.worker)
    for agent, version in sorted({*nodes, *tasks}):
        about, count = f"agent {agent}", tasks.get((agent, version), 0)
        if workers := len(nodes[agent, version]):
            yield ok(about, f"version {version} has open tasks: {count}, and workers: {workers}")
        else:
            effect = "Other versions continue them, or fail them if their steps differ"
            remedy = f"To prevent failures, start a worker with version {version}"
            yield note(
                about, f"tasks that began with version {version}, which no worker has: {count}. {effect}. {remedy}."
            )


def imports(survey: Survey) -> Findings:
    for agent, error in survey.import_errors.items():
        if any(agent in report["agents"] for report in survey.complete_workers.values()):
            yield note(f"agent {agent}", f"{error}. Running workers have the agent, but no worker can start here.")
        else:
            yield wrong(f"agent {agent}", f"{error}. No worker can start: install or correct the module.")


def results(survey: Survey) -> Findings:
    queues = set(survey.queues.values())
    others = {
        node: report for node, report in survey.own_workers.items() if "pool" not in report and report.get("agents")
    }
    stock = ", ".join(node for node, report in others.items() if not queues.isdisjoint(report["queues"]))
    if survey.results_problem:
        level, of_workers = (wrong, f" Such workers run: {stock}.") if stock else (note, "")
        yield level("results", f"{survey.results_problem}.{of_workers}")
    if stock:
        yield note(
            "exposed tasks",
            f"workers without this package do not claim runs: {stock}. They execute a task at most once. It is FAILED "
            "if its worker does not reply for five times redispatch_after, as a worker of the solo pool does during a "
            "long task, and its client sees WORKING only with task_track_started.",
        )


def cancelling(survey: Survey) -> Findings:
    runs_on = f"an agent that runs {survey.settings.cancel_grace:g} s after a cancel"
    for node, report in survey.complete_workers.items():
        pool, abandoned = report["pool"], ", ".join(report["abandoned"])
        yield from matching(
            node,
            (ok, pool == "prefork", f"enforces cancellation: kills {runs_on}"),
            (
                note,
                pool != "prefork",
                f"cannot enforce cancellation on the pool {pool}: abandons {runs_on}. Use prefork.",
            ),
            (note, abandoned, f"abandoned agents still run: {abandoned}. Restart the worker to end them."),
        )


def events(survey: Survey) -> Findings:
    silent = ", ".join(node for node, report in survey.complete_workers.items() if not report.get("events"))
    yield from matching(
        "events",
        (note, silent, f"workers send no events to Flower: {silent}. Start them with -E."),
        (all_ok, survey.complete_workers, "all workers send events to Flower"),
    )


def watchers(survey: Survey) -> Findings:
    if survey.watchers:
        yield ok("watchers", ", ".join(report["watcher"] for report in survey.watchers.values()))
    elif not survey.store_error:
        effect = "runs of lost workers stay open, and runs that the broker did not accept never begin"
        yield wrong("watchers", f"no watcher runs: {effect}. Start celery -A … a2a watcher.")


def secrets(survey: Survey) -> Findings:
    sealer = sealer_of(survey.settings.secret_keys)
    required = survey.secrets | ({sealer.fingerprint} if sealer is not None else set())
    for process, report in survey.watchers.items():
        if required - set(report.get("secrets", ())):
            state = "lacks a key of A2A_SECRET_KEY" if report.get("secrets") else "has no A2A_SECRET_KEY"
            yield wrong(process, f"{state}, so deliveries to webhooks fail. Set the gateways' A2A_SECRET_KEY there.")
    if required and survey.watchers:
        yield all_ok("secret key", "the keys of watchers decrypt all webhooks")


def signing_keys(survey: Survey) -> Findings:
    public_keys = published_keys(survey.settings)
    for process, report in survey.watchers.items():
        keys = report.get("signing_keys", [])
        if public_keys and not keys:
            yield wrong(process, "has no A2A_WEBHOOK_PRIVATE_KEY, and gateways publish public keys: set it there.")
        elif not set(keys) <= set(public_keys):
            effect = "which gateways with the settings of this command do not publish: receivers refuse its posts"
            yield wrong(process, f"signs webhooks with {keys[0]}, {effect}. Use the same A2A_WEBHOOK_PRIVATE_KEY.")
    if public_keys and survey.watchers:
        yield all_ok("signatures", "watchers sign with published keys")


def dead_letters(survey: Survey) -> Findings:
    if count := survey.metrics.resubmittable:
        commands = "celery -A … a2a requeue lists them; a2a requeue --all runs them again"
        yield note("dead letters", f"{count} FAILED because the worker was lost: {commands}.")


def questions(survey: Survey) -> Findings:
    waiting, ending = survey.metrics.paused, survey.ending_questions
    if ending:
        yield note(
            "questions",
            f"{ending} of {waiting} tasks that wait for an answer fail within the hour, when their input_timeout ends: "
            "celery -A … a2a list --stuck lists them, a2a send AGENT TEXT --task TASK answers.",
        )
    elif waiting:
        yield ok("questions", f"{waiting} tasks wait for an answer, and no input_timeout ends soon")


def same_settings(survey: Survey) -> Findings:
    local, prefix = visible_settings(survey.settings), survey.settings.key_prefix
    for process, report in survey.processes.items():
        settings, unused_names = report["settings"], NOT_OF_WORKERS if "pool" in report else NOT_OF_WATCHERS
        if settings.get("key_prefix", prefix) != prefix:
            shared_queues = ", ".join(sorted(consumed_queues(report).intersection(survey.queues.values())))
            yield wrong(
                process,
                f"belongs to another fleet: A2A_KEY_PREFIX is {settings['key_prefix']!r} there, and {prefix!r} here. "
                f"The fleets share {shared_queues}, and return each other's messages. Make the prefixes equal, or give "
                "each fleet separate queues.",
            )
            continue
        for name in sorted((local.keys() | settings.keys()) - unused_names):
            there, here, variable = settings.get(name), local.get(name), f"{ENV_PREFIX}{name.upper()}"
            if there != here:
                yield wrong(process, f"{variable} is {there!r} there, and {here!r} here: make them equal.")
    if survey.processes:
        yield all_ok("settings", "workers, watchers and this command have equal settings")


def clocks(survey: Survey) -> Findings:
    stores = {node: report["store"] for node, report in survey.complete_workers.items()}
    offsets = {node: store["clock_offset"] for node, store in stores.items() if "clock_offset" in store}
    if survey.store is not None:
        offsets["this machine"] = survey.store.clock_offset
    for process, seconds in offsets.items():
        if abs(seconds) > MAX_SKEW:
            difference = f"{process} is {abs(seconds):.1f} s {'ahead of' if seconds > 0 else 'behind'} the store's"
            yield wrong("clock", f"{difference}: use NTP. Messages expire, or begin, at the wrong time.")
    if offsets:
        yield all_ok("clock", f"within {max(map(abs, offsets.values())):.2f} s of the store's")


def gateway(survey: Survey) -> Findings:
    health = survey.gateway_health
    if isinstance(health, str):
        level = wrong if survey.gateway_named else note
        yield level("gateway", f"no gateway at {survey.gateway} ({health}): pass its address with --url")
    elif health.get("status") == "ok":
        yield ok("gateway", f"{survey.gateway} is ready")
    else:
        missing = "; ".join(f"{name}: {state}" for name, state in health.items() if name != "status" and state != "ok")
        yield wrong("gateway", f"{survey.gateway} is not ready: {missing or health}")


def _of_feature(name: str) -> Callable[[Survey], Findings]:
    def check(survey: Survey) -> Findings:
        yield from survey.feature_findings.get(name, ())

    check.__name__ = name
    return check


OF_SERVERS = (store, memory, start, archive, broker, timeouts)
OF_WORKERS = (workers, other_fleets, versions, agents, backlogs, agent_versions, imports, results, cancelling, events)
OF_WATCHERS = (watchers, secrets, signing_keys, *map(_of_feature, FEATURE_CHECKS), dead_letters, questions)
CHECKS: tuple[Callable[[Survey], Findings], ...] = (
    *(configuration, *OF_SERVERS, *OF_WORKERS, *OF_WATCHERS, same_settings, clocks, gateway),
)


def diagnosis(survey: Survey) -> list[Finding]:
    """Run all checks and return their findings."""
    diagnosis = []
    for check in CHECKS:
        findings = list(check(survey))
        has_problem = any(finding.level != "ok" for finding in findings)
        shown = (finding for finding in findings if not (has_problem and finding.is_summary))
        diagnosis += [replace(finding, check=check.__name__) for finding in shown]
    return diagnosis
