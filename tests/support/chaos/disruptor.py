"""Disruptor that executes the disruptions of a plan on a fleet and records incidents and unexpected exits."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress

from tests.support.chaos.fleet import ChaosFleet, Incident, ProcessSlot, wall_time
from tests.support.chaos.plan import CLOCKS, LEASE, Disruption


class Disruptor:
    """Disruptor of `fleet`."""

    def __init__(self, fleet: ChaosFleet) -> None:
        self._fleet = fleet
        self.skipped = 0
        self.died: list[str] = []
        """Names and last output of processes that exited without a disruption."""

    async def disrupt_all(self, disruptions: list[Disruption], began: float) -> None:
        """Execute each disruption at the planned time after `began`, a time of the event loop's clock. Return when
        every process and server is up again.

        At last, the store's clock is set to the latest of its times, so that no run is due later than it should be.

        Raises:
            ExceptionGroup: A disruption could not be executed or undone.
        """
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as under_way:
            for disruption in disruptions:
                await asyncio.sleep(max(0.0, began + disruption.at - loop.time()))
                under_way.create_task(self._disrupt(disruption))
        await self._disrupt(Disruption(loop.time() - began, "move store", CLOCKS.index(max(CLOCKS)), LEASE))

    async def restart_dead(self) -> None:
        """Restart processes that exited without a disruption, until cancelled."""
        while True:
            for slot in self._fleet.slots:
                if slot.state == "up" and slot.process is not None and not slot.process.is_running:
                    await self._found_dead(slot)
            await asyncio.sleep(0.2)

    async def _found_dead(self, slot: ProcessSlot) -> None:
        assert slot.process is not None
        slot.state = "down"
        incident = Incident(f"died {slot.kind}", slot.process.name, slot.process.pid, wall_time())
        self._fleet.incidents.append(incident)
        self.died.append(f"{slot.process.name} ended unexpectedly: \n{slot.process.output()[-3000:]}")
        await self._fleet.start_process(slot)
        incident.end = wall_time()

    async def _disrupt(self, disruption: Disruption) -> None:
        verb, target = disruption.kind.split()
        if target in ("store", "broker"):
            await self._hit_server(disruption, target)
            return
        slots = [p for p in self._fleet.slots_of("worker" if target == "child" else target) if p.state == "up"]
        if target == "child":
            slots = [p for p in slots if p.prefork]
        if not slots or (target == "worker" and len(slots) == 1):  # keep the last worker, so that runs continue
            self.skipped += 1
            return
        slot = slots[disruption.target % len(slots)]
        if target == "child":
            await self._hit_child(disruption, verb, slot)
        elif verb == "kill":
            await self._kill(disruption, slot)
        else:
            await self._freeze(disruption, slot)

    def _add_incident(self, disruption: Disruption, process: str = "", pid: int = 0) -> Incident:
        incident = Incident(disruption.kind, process, pid, wall_time())
        self._fleet.incidents.append(incident)
        return incident

    async def _hit_server(self, disruption: Disruption, target: str) -> None:
        if any(i.of == target and i.end > wall_time() for i in self._fleet.incidents):
            self.skipped += 1
            return
        fleet = self._fleet
        is_shared = target == "broker" and fleet.broker is None
        if is_shared and (fleet.proxy is None or disruption.kind == "fill broker"):  # with the store or tests
            self.skipped += 1
            return
        incident = self._add_incident(disruption)
        match disruption.kind.split()[0], target:
            case "restart", "store":
                await fleet.restart_store(disruption.lasts)
            case "restart", _:
                await fleet.restart_broker(disruption.lasts)
            case "freeze", "store":
                await fleet.freeze_store(disruption.lasts)
            case "freeze", _:
                await fleet.freeze_broker(disruption.lasts)
            case "cut", "store":
                await fleet.cut_store()
            case "cut", _:
                await fleet.cut_broker()
            case "failover", _:
                self.skipped += not await fleet.fail_over_store(disruption.lasts)
            case "exhaust", _:
                self.skipped += not await fleet.exhaust_disk(disruption.lasts)
            case "move", _:
                await fleet.move_store_clock(CLOCKS[disruption.target % len(CLOCKS)])
                await asyncio.sleep(disruption.lasts)
            case "spoil", _:
                await fleet.refuse_writes(fleet.store, "MISCONF", disruption.lasts)
            case "fill", "store":
                await fleet.refuse_writes(fleet.store, "OOM", disruption.lasts)
            case "fill", _ if fleet.broker is not None:
                await fleet.refuse_writes(fleet.broker, "OOM", disruption.lasts)
        incident.end = wall_time()

    async def _kill(self, disruption: Disruption, slot: ProcessSlot) -> None:
        assert slot.process is not None
        slot.state = "down"
        incident = self._add_incident(disruption, slot.process.name, slot.process.pid)
        await asyncio.to_thread(slot.process.kill)
        await asyncio.sleep(disruption.lasts)
        await self._fleet.start_process(slot)
        incident.end = wall_time()

    async def _freeze(self, disruption: Disruption, slot: ProcessSlot) -> None:
        assert slot.process is not None
        slot.state = "frozen"
        incident = self._add_incident(disruption, slot.process.name, slot.process.pid)
        slot.process.signal_group(signal.SIGSTOP)
        await asyncio.sleep(disruption.lasts)
        slot.process.signal_group(signal.SIGCONT)
        incident.end = wall_time()
        slot.state = "up"

    async def _hit_child(self, disruption: Disruption, verb: str, slot: ProcessSlot) -> None:
        children = self._fleet.children(slot)
        if not children or slot.process is None:
            self.skipped += 1
            return
        pid = children[disruption.target % len(children)]
        incident = self._add_incident(disruption, slot.process.name, pid)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL if verb == "kill" else signal.SIGSTOP)
            if verb == "freeze":
                await asyncio.sleep(disruption.lasts)
                os.kill(pid, signal.SIGCONT)
        incident.end = wall_time()
