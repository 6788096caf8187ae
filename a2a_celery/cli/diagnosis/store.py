"""What is right and what isn't with the store, and with the clocks that are compared with its own."""

from __future__ import annotations

from collections.abc import Iterator

from ..keeping import lines
from ..survey import Survey, reporting
from .finding import Finding, note, ok, wrong

OLDEST = (6, 2)
"""The Redis whose commands the scripts use."""

FILLING, NEARLY_FULL = 0.75, 0.9
"""Shares of maxmemory."""

MAX_SKEW = 2.0
"""Seconds that clocks may differ: expiry and scheduled times are told by the clock of the machine that looks."""


def store(found: Survey) -> Iterator[Finding]:
    """The server, and whether it keeps what it is given."""
    server = found.store
    if isinstance(server, str):
        yield wrong("store", f"{server}. Nothing works without it: see A2A_STORE_URL.")
        return
    name = f"{server.kind} {server.version}"
    yield ok("store", f"{name}, answers in {server.answered_in * 1000:.1f} ms")
    version = tuple(int(part) for part in server.version.split(".")[:2] if part.isdigit())
    if server.kind == "Redis" and version < OLDEST:
        yield wrong("store", f"{name} is too old: at least {OLDEST[0]}.{OLDEST[1]}.")
    if not server.primary:
        yield wrong("store", "it is a replica, which can't be written: name the primary in A2A_STORE_URL.")
    if server.cluster:
        yield wrong("store", "it is a cluster, whose nodes each have a part: use one primary.")
    if server.evicts == "noeviction":
        yield ok("store", "maxmemory-policy is noeviction")
    elif server.max_memory:
        yield wrong("store", f"maxmemory-policy is {server.evicts}: tasks vanish when memory is short. Set noeviction.")
    else:
        yield note(
            "store",
            f"maxmemory-policy is {server.evicts}; there is no maxmemory, so nothing goes. "
            "Set noeviction all the same.",
        )
    if server.append_only:
        yield ok("store", "appendonly is yes")
    else:
        yield note("store", "appendonly is no: its tasks may not outlive it. Set appendonly yes.")
    if server.unsaved:
        yield wrong("store", f"{server.unsaved} could not be written when it last tried: see its log, and its disk.")


def keeping(found: Survey) -> Iterator[Finding]:
    """Whether it is as this release reads it, and whether ended tasks come to the archive."""
    watching = () if isinstance(found.watchers, str) else found.watchers
    yield from (Finding(*line) for line in lines(found.keeping, found.settings, watching))


def memory(found: Survey) -> Iterator[Finding]:
    """Whether there is room for more tasks."""
    if isinstance(found.store, str) or not found.store.max_memory:
        return
    used = found.store.used_memory / found.store.max_memory
    said = f"{used:.0%} of maxmemory ({found.store.max_memory / 2**20:,.0f} MiB) are used"
    if used >= NEARLY_FULL:
        yield wrong(
            "memory",
            f"{said}: a full store refuses new tasks. Raise maxmemory, or keep tasks for less long (retention).",
        )
    elif used >= FILLING:
        yield note("memory", f"{said}: raise maxmemory before it is full, or keep tasks for less long (retention).")
    else:
        yield ok("memory", said)


def clocks(found: Survey) -> Iterator[Finding]:
    """This machine's clock and the workers', by the store's."""
    ahead = {node: report["store"]["ahead"] for node, report in reporting(found) if "ahead" in report["store"]}
    if not isinstance(found.store, str):
        ahead["this machine"] = found.store.ahead
    for who, seconds in ahead.items():
        if abs(seconds) > MAX_SKEW:
            way = "ahead of" if seconds > 0 else "behind"
            yield wrong(
                "clock",
                f"{who} is {abs(seconds):.1f} s {way} the store's: use NTP. "
                "Messages expire, or begin, at the wrong time.",
            )
    if ahead and all(abs(seconds) <= MAX_SKEW for seconds in ahead.values()):
        yield ok("clock", f"within {max(map(abs, ahead.values())):.2f} s of the store's")
