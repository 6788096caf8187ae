"""Checks of the store, its memory, its schema, the archive and the clocks."""

from __future__ import annotations

from collections.abc import Iterator

from .archive_check import storage_lines
from .survey import Finding, Survey, note, ok, reporting, wrong

OLDEST = (6, 2)
"""Oldest Redis version that supports the commands used in the scripts."""

FILLING, NEARLY_FULL = 0.75, 0.9
"""Shares of maxmemory from which the check yields the level "note" or "wrong". The setting `store_watermark` replaces
`NEARLY_FULL`."""

MAX_SKEW = 2.0
"""Maximum difference between clocks, in seconds. Each machine compares expiry and scheduled times with its own
clock."""


def store(survey: Survey) -> Iterator[Finding]:
    """Check the server and its persistence."""
    server = survey.store
    if isinstance(server, str):
        yield wrong("store", f"{server}. Gateways, workers and watchers need the store: check A2A_STORE_URL.")
        return
    name = f"{server.kind} {server.version}"
    yield ok("store", f"{name}, answers in {server.answered_in * 1000:.1f} ms")
    version = tuple(int(part) for part in server.version.split(".")[:2] if part.isdigit())
    if server.kind == "Redis" and version < OLDEST:
        yield wrong("store", f"{name} is too old: at least {OLDEST[0]}.{OLDEST[1]}.")
    if not server.primary:
        yield wrong("store", "A2A_STORE_URL names a read-only replica: name the primary.")
    if server.cluster:
        yield wrong("store", "the server is a cluster, which is not supported: use one primary.")
    if server.evicts == "noeviction":
        yield ok("store", "maxmemory-policy is noeviction")
    elif server.max_memory:
        yield wrong("store", f"maxmemory-policy is {server.evicts}: Redis may evict tasks. Set noeviction.")
    else:
        yield note(
            "store",
            f"maxmemory-policy is {server.evicts}; without maxmemory it has no effect. "
            "Set noeviction for a later maxmemory.",
        )
    if server.append_only:
        yield ok("store", "appendonly is yes")
    else:
        yield note("store", "appendonly is no: a restart may lose tasks. Set appendonly yes.")
    replicas = survey.settings.store_wait_replicas
    if server.replicas < replicas:
        yield wrong(
            "store",
            f"the store has {server.replicas} replicas, and a2a_store_wait_replicas is {replicas}: start more of them.",
        )
    if server.unsaved:
        yield wrong("store", f"the server could not write {server.unsaved}: check the server's log and disk.")


def storage(survey: Survey) -> Iterator[Finding]:
    """Check the schema and the archive."""
    watching = () if isinstance(survey.watchers, str) else survey.watchers
    yield from (Finding(*line) for line in storage_lines(survey.storage, survey.settings, watching))


def memory(survey: Survey) -> Iterator[Finding]:
    """Check that the store has memory for more tasks."""
    if isinstance(survey.store, str) or not survey.store.max_memory:
        return
    used_share = survey.store.used_memory / survey.store.max_memory
    usage = f"{used_share:.0%} of maxmemory ({survey.store.max_memory / 2**20:,.0f} MiB) are used"
    watermark = survey.settings.store_watermark
    nearly_full = watermark or NEARLY_FULL
    if used_share >= nearly_full:
        refuses = f"above {watermark:.0%} no message is accepted" if watermark else "a full store refuses new tasks"
        yield wrong("memory", f"{usage}: {refuses}. Raise maxmemory, or lower the retention.")
    elif used_share >= min(FILLING, nearly_full):
        yield note("memory", f"{usage}: raise maxmemory, or lower the retention.")
    else:
        yield ok("memory", usage)


def clocks(survey: Survey) -> Iterator[Finding]:
    """Check the clocks of this machine and of the workers against the store's."""
    offsets = {
        node: report["store"]["clock_offset"] for node, report in reporting(survey) if "clock_offset" in report["store"]
    }
    if not isinstance(survey.store, str):
        offsets["this machine"] = survey.store.clock_offset
    for process, seconds in offsets.items():
        if abs(seconds) > MAX_SKEW:
            way = "ahead of" if seconds > 0 else "behind"
            yield wrong(
                "clock",
                f"{process} is {abs(seconds):.1f} s {way} the store's: use NTP. "
                "Messages expire, or begin, at the wrong time.",
            )
    if offsets and all(abs(seconds) <= MAX_SKEW for seconds in offsets.values()):
        yield ok("clock", f"within {max(map(abs, offsets.values())):.2f} s of the store's")
