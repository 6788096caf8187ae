"""How much each host gets: a few posts at once, and a rest when it does not answer.

So ten thousand deliveries that wait for a dead host take nothing from the others, and it is tried once in a while.
What counts is whether a host answers, not what: one path's 500 says nothing of the next one's.
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from ..clock import SYSTEM_CLOCK, Clock

PER_HOST = 8
IN_ALL = 256
OPEN_AFTER = 5
FIRST_REST = 5.0
LONGEST_REST = 300.0
MOST_HOSTS = 10_000
SHORT_WAIT = 1.0
"""Seconds, at least, before one that found no place looks again; at most twice that."""
PROBE_WAIT = 5.0
"""The same for one that found its host being tried: whoever tries waits for up to a post's timeout."""
PATIENCE = 1.0
"""Seconds for which the first that find a host busy wait for a place there, so that one that is fast has no pause."""
MOST_WAITING = 2 * PER_HOST
"""So many wait for one host; who else comes looks again later, and takes no room meanwhile."""
BUSY = "the host has enough posts under way"
LOOKS = 100
"""How many of those that wait for a host look again per second, at most: the more there are, the longer each waits."""


@dataclass(frozen=True, slots=True)
class Held:
    """Nothing was posted: no attempt. `after` is in how many seconds it may be asked again; no two get the same."""

    after: float
    reason: str
    dead: bool = False
    """Because the host does not answer, and not because it is busy."""


class _Host:
    """What is known of one host."""

    __slots__ = ("failures", "in_flight", "next_look", "probing", "rest", "rests_until", "waiting")

    def __init__(self) -> None:
        self.in_flight = 0
        self.failures = 0  # in a row
        self.rest = 0.0  # the last one's length; 0: it answers
        self.rests_until = 0.0
        self.probing = False
        self.next_look = 0.0  # when there is one to spare
        self.waiting: list[asyncio.Future[bool]] = []  # for a place, each to be told whether it has one


class Hosts:
    """Who may post to which host now. Not for threads; remembers at most `most_hosts` that have failed.

    A host that has not answered `open_after` times in a row rests: `first_rest` seconds, then twice as long each time,
    up to `longest_rest`, and always a random part less. After a rest one post tries it; its answer lets the others go,
    its failure is the next rest.
    """

    def __init__(
        self,
        *,
        per_host: int = PER_HOST,
        in_all: int = IN_ALL,
        open_after: int = OPEN_AFTER,
        first_rest: float = FIRST_REST,
        longest_rest: float = LONGEST_REST,
        most_hosts: int = MOST_HOSTS,
        clock: Clock = SYSTEM_CLOCK,
        random: Callable[[], float] = random.random,
    ) -> None:
        self.in_all = in_all
        self._per_host = per_host
        self._open_after = open_after
        self._first_rest = first_rest
        self._longest_rest = longest_rest
        self._most_hosts = most_hosts
        self._clock = clock
        self._random = random
        self._in_flight = 0
        self._known: OrderedDict[str, _Host] = OrderedDict()

    @property
    def remembered(self) -> int:
        """How many hosts something is known of."""
        return len(self._known)

    def held(self, name: str, *, waits: bool = False) -> Held | None:
        """Why a post to the host `name` has to wait now, which is expected to look again then; None: it need not, or it
        may stay and wait, if it `waits`."""
        if self._in_flight >= self.in_all:
            return Held(self._soon(SHORT_WAIT), "too many posts are under way")
        host = self._known.get(name)
        if host is None:
            return None
        if host.rest:
            left = host.rests_until - self._clock.monotonic()
            if left > 0:
                # spread over another rest: when the host is back, not everybody is there at once
                return self._held(
                    host, left + self._random() * host.rest, "the host does not answer, and rests", dead=True
                )
            if host.probing:
                return self._held(
                    host, self._soon(PROBE_WAIT), "the host did not answer, and is being tried", dead=True
                )
        if host.in_flight >= self._per_host and not (waits and len(host.waiting) < MOST_WAITING):
            return self._held(host, self._soon(SHORT_WAIT), BUSY)
        return None

    def enter(self, name: str) -> Place | Held:
        """A place for one post to the host `name`, to be left again; or why there is none."""
        held = self.held(name)
        if held is not None:
            return held
        host = self._known.setdefault(name, _Host())
        self._known.move_to_end(name)
        host.in_flight += 1
        self._in_flight += 1
        probes = host.rest > 0
        host.probing |= probes
        self._forget_some()
        return Place(self, name, probes)

    async def place(self, name: str, patience: float) -> Place | Held:
        """As `enter`; waits up to `patience` seconds, in a row, where only posts that are under way are before it."""
        host = self._known.get(name)
        busy = host is not None and host.in_flight >= self._per_host and patience > 0
        if host is None or not busy or self._in_flight >= self.in_all or host.rest or len(host.waiting) >= MOST_WAITING:
            return self.enter(name)
        turn = asyncio.get_running_loop().create_future()
        host.waiting.append(turn)
        try:
            async with self._clock.timeout(patience):
                return Place(self, name, False) if await turn else self.enter(name)
        except (TimeoutError, asyncio.CancelledError) as e:
            if turn in host.waiting:
                host.waiting.remove(turn)
            elif not turn.cancelled() and turn.result():  # came in the same moment
                Place(self, name, False).leave(None)
            if isinstance(e, TimeoutError):
                return self._held(host, self._soon(SHORT_WAIT), BUSY)
            raise

    def _leave(self, place: Place, answered: bool | None) -> None:
        host = self._known[place.name]
        host.in_flight -= 1
        self._in_flight -= 1
        if place.probes:
            host.probing = False
        if answered:
            host.failures, host.rest = 0, 0.0
        elif answered is False:
            host.failures += 1
            # those that were under way when a rest began say nothing new
            if place.probes if host.rest else host.failures >= self._open_after:
                self._begin_rest(host)
        self._hand_on(host)
        if not (host.in_flight or host.failures or host.rest):
            del self._known[place.name]

    def _hand_on(self, host: _Host) -> None:
        """Gives the place that was left to the first who waits; where the host rests now, all are told so."""
        while host.waiting:
            turn = host.waiting.pop(0)
            if turn.done():
                continue
            turn.set_result(not host.rest)
            if not host.rest:
                host.in_flight += 1
                self._in_flight += 1
                return

    def _begin_rest(self, host: _Host) -> None:
        host.rest = min(self._longest_rest, host.rest * 2) or self._first_rest
        host.rests_until = self._clock.monotonic() + host.rest * (0.5 + self._random() / 2)

    def _forget_some(self) -> None:
        """Drops who was not posted to for longest, until as many are known as may be."""
        while len(self._known) > self._most_hosts:
            idle = next((name for name, host in self._known.items() if not host.in_flight), None)
            if idle is None:
                return
            del self._known[idle]

    def _held(self, host: _Host, after: float, reason: str, *, dead: bool = False) -> Held:
        now = self._clock.monotonic()
        host.next_look = max(host.next_look, now) + 1 / LOOKS
        return Held(max(after, host.next_look - now), reason, dead)

    def _soon(self, seconds: float) -> float:
        return seconds * (1 + self._random())


@dataclass(slots=True)
class Place:
    """One post's right to be under way."""

    _hosts: Hosts
    name: str
    probes: bool
    """Whether it tries a host that rested."""

    def leave(self, answered: bool | None) -> None:
        """The post is over. `answered`: whether the host gave an HTTP answer; None if that was not found out."""
        self._hosts._leave(self, answered)
