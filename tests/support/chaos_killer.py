"""Carries out a plan's blows, and puts back what they broke; keeps what it did, and what died without it."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from importlib.util import find_spec

from .chaos_fleet import ChaosFleet, Incident, Place, now
from .chaos_plan import CLOCKS, Blow

GUARDED = find_spec("a2a_celery.dispatch.broker_guards") is not None
"""Celery 5.7's workers die when a Redis broker restarts under them; with the guard, a worker that dies is a failure."""

AFTERMATH = 30.0
"""Seconds within which such a worker dies."""


class Killer:
    """Breaks `fleet` as planned."""

    def __init__(self, fleet: ChaosFleet) -> None:
        self._fleet = fleet
        self.skipped = 0
        self.died: list[str] = []
        """What died by itself, and must not."""

    async def strike_all(self, blows: list[Blow], began: float) -> None:
        """Strike each blow at its time, counted from `began` (of the loop's clock). Return when all is up again.

        Raises:
            ExceptionGroup: A blow could not be carried out or mended. The rest of the run would show nothing.
        """
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as under_way:
            for blow in blows:
                await asyncio.sleep(max(0.0, began + blow.at - loop.time()))
                under_way.create_task(self._strike(blow))

    async def look_after(self) -> None:
        """Starts again what died by itself, for ever."""
        while True:
            for place in self._fleet.places:
                if place.state == "up" and place.process is not None and not place.process.running:
                    await self._found_dead(place)
            await asyncio.sleep(0.2)

    async def _found_dead(self, place: Place) -> None:
        assert place.process is not None
        place.state = "down"
        incident = Incident(f"died {place.kind}", place.process.name, place.process.pid, now())
        self._fleet.incidents.append(incident)
        if place.kind != "worker" or GUARDED or not self._broker_restarted_before(incident.begin):
            self.died.append(f"{place.process.name} ended by itself:\n{place.process.output()[-3000:]}")
        await self._fleet.bring_up(place)
        incident.end = now()

    def _broker_restarted_before(self, at: float) -> bool:
        if self._fleet.broker is None:
            return False
        return any(i.kind == "restart broker" and i.begin <= at <= i.end + AFTERMATH for i in self._fleet.incidents)

    async def _strike(self, blow: Blow) -> None:
        verb, what = blow.kind.split()
        if what in ("store", "broker"):
            await self._hit_server(blow, what)
            return
        places = [p for p in self._fleet.those("worker" if what == "child" else what) if p.state == "up"]
        if what == "child":
            places = [p for p in places if p.prefork]
        if not places or (what == "worker" and len(places) == 1):  # one is left, or nothing happens for long
            self.skipped += 1
            return
        place = places[blow.target % len(places)]
        if what == "child":
            await self._hit_child(blow, verb, place)
        elif verb == "kill":
            await self._kill(blow, place)
        else:
            await self._freeze(blow, place)

    def _note(self, blow: Blow, process: str = "", pid: int = 0) -> Incident:
        incident = Incident(blow.kind, process, pid, now())
        self._fleet.incidents.append(incident)
        return incident

    async def _hit_server(self, blow: Blow, what: str) -> None:
        if any(i.of == what and i.end > now() for i in self._fleet.incidents):
            self.skipped += 1
            return
        fleet = self._fleet
        if blow.kind == "fill broker" and fleet.broker is None:  # the RabbitMQ is everybody's
            self.skipped += 1
            return
        incident = self._note(blow)
        match blow.kind.split()[0], what:
            case "restart", "store":
                await fleet.restart_store(blow.lasts)
            case "restart", _:
                await fleet.restart_broker(blow.lasts)
            case "freeze", "store":
                await fleet.freeze_store(blow.lasts)
            case "freeze", _:
                await fleet.freeze_broker(blow.lasts)
            case "cut", "store":
                await fleet.cut_store()
            case "cut", _:
                await fleet.cut_broker()
            case "failover", _:
                self.skipped += not await fleet.fail_over_store(blow.lasts)
            case "exhaust", _:
                self.skipped += not await fleet.exhaust_disk(blow.lasts)
            case "move", _:
                await fleet.move_store_clock(CLOCKS[blow.target % len(CLOCKS)])
                await asyncio.sleep(blow.lasts)
            case "spoil", _:
                await fleet.refuse_writes(fleet.store, "MISCONF", blow.lasts)
            case "fill", "store":
                await fleet.refuse_writes(fleet.store, "OOM", blow.lasts)
            case "fill", _ if fleet.broker is not None:
                await fleet.refuse_writes(fleet.broker, "OOM", blow.lasts)
        incident.end = now()

    async def _kill(self, blow: Blow, place: Place) -> None:
        assert place.process is not None
        place.state = "down"
        incident = self._note(blow, place.process.name, place.process.pid)
        await asyncio.to_thread(place.process.kill)
        await asyncio.sleep(blow.lasts)
        await self._fleet.bring_up(place)
        incident.end = now()

    async def _freeze(self, blow: Blow, place: Place) -> None:
        assert place.process is not None
        place.state = "frozen"
        incident = self._note(blow, place.process.name, place.process.pid)
        place.process.signal_group(signal.SIGSTOP)
        await asyncio.sleep(blow.lasts)
        place.process.signal_group(signal.SIGCONT)
        incident.end = now()
        place.state = "up"

    async def _hit_child(self, blow: Blow, verb: str, place: Place) -> None:
        children = self._fleet.children(place)
        if not children or place.process is None:
            self.skipped += 1
            return
        pid = children[blow.target % len(children)]
        incident = self._note(blow, place.process.name, pid)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL if verb == "kill" else signal.SIGSTOP)
            if verb == "freeze":
                await asyncio.sleep(blow.lasts)
                os.kill(pid, signal.SIGCONT)
        incident.end = now()
