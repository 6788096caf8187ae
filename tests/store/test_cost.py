"""Cost of operations. The cost does not grow with the size of a task."""

from __future__ import annotations

import asyncio

from a2a_celery.lifecycle.references import RunRef
from a2a_celery.lifecycle.states import COMPLETED, WORKING
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.log.pages import read_log
from a2a_celery.store.operation import Operation
from a2a_celery.store.runs.commands import Claim, append, claim_run, settle_run
from a2a_celery.store.tasks.commands import create_task, read_final_task
from tests.support.store.seeds import ANN, CONTEXT, Seeds, chunk, request, status


class Meter:
    """Counter of the commands that Redis executes, based on the statistics of the server."""

    def __init__(self, store: AsyncStore) -> None:
        self._store = store

    async def cost_of(self, operation: Operation[object]) -> dict[str, int]:
        """Return the number of calls to each command, including the calls by scripts."""
        await self._store.redis.script_load(operation.script.text)
        await self._store.ping()  # a new connection sends CLIENT SETINFO first
        calls_before = await self._calls()
        await self._store.run(operation)
        calls_after = await self._calls()
        costs = {name: calls - calls_before.get(name, 0) for name, calls in calls_after.items()}
        return {name: calls for name, calls in costs.items() if calls and name not in ("cmdstat_info", "cmdstat_ping")}

    async def bytes_sent(self) -> int:
        """Return the number of bytes that the server has sent to all clients."""
        return int((await self._store.redis.info("stats"))["total_net_output_bytes"])

    async def _calls(self) -> dict[str, int]:
        return {name: stat["calls"] for name, stat in (await self._store.redis.info("commandstats")).items()}


async def grow(seeds: Seeds, claim: Claim, count: int, until: int) -> int:
    """Write chunks until the task has `until` chunks, and return their number."""
    while count < until:
        await seeds.append_events(
            claim, *(chunk(f"{n} ") for n in range(count, min(count + 50, until))), written_count=count
        )
        count = min(count + 50, until)
    return count


async def test_a_chunk_costs_the_same_at_ten_and_at_two_thousand(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    meter, claim = Meter(store), await seeds.claim_run()

    def append_chunk(version: int) -> Operation[object]:
        return append(keys, claim.ref, token=claim.token, written_count=version, events=[chunk("x")])  # type: ignore[return-value]

    count = await grow(seeds, claim, 0, 10)
    early_cost = await meter.cost_of(append_chunk(count))
    count = await grow(seeds, claim, count + 1, 2000)
    late_cost = await meter.cost_of(append_chunk(count))

    assert early_cost == late_cost
    assert early_cost["cmdstat_rpush"] == 2  # one for the log and one for the artifact
    assert not {"cmdstat_lrange", "cmdstat_smembers", "cmdstat_zrange"} & early_cost.keys()
    assert sum(early_cost.values()) <= 10


async def test_a_status_costs_the_same_early_and_late(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    meter, claim = Meter(store), await seeds.claim_run()
    costs = []
    for number in range(50):
        event = status(WORKING, f"step {number}", step=number)
        costs.append(
            await meter.cost_of(
                append(keys, claim.ref, token=claim.token, written_count=number, events=[event])  # type: ignore[arg-type]
            )
        )

    assert all(cost == costs[1] for cost in costs[1:])  # the first status replaces no earlier message


async def test_agents_without_sessions_pay_nothing_for_them(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    meter, message_request = Meter(store), request(task_id="t", context_id=CONTEXT)

    costs = [
        await meter.cost_of(create_task(keys, ANN, "t", CONTEXT, message_request, caller=b"{}", retention=60)),
        await meter.cost_of(claim_run(keys, RunRef("t", 1), token="k", runner="r", lease_us=1, working=False)),
        await meter.cost_of(settle_run(keys, RunRef("t", 1), token="k", written_count=0, events=[status(COMPLETED)])),
    ]

    assert [sum(cost.values()) for cost in costs] == [11, 17, 38], "5 and 7 of them are metrics"


async def test_the_record_of_an_echo_has_few_fields(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    task_id = await seeds.create_task()
    waiting = await store.redis.hlen(keys.task(task_id).record)

    await seeds.claim_run(task_id)

    assert (waiting, await store.redis.hlen(keys.task(task_id).record)) == (16, 21), "the numbers may only fall"


async def test_continuing_a_read_costs_one_read_of_a_log_of_any_length(
    store: AsyncStore, keys: Keys, seeds: Seeds
) -> None:
    meter, claim = Meter(store), await seeds.claim_run()
    await grow(seeds, claim, 0, 1000)

    cost = await meter.cost_of(read_log(keys, claim.ref.task_id, 990))  # type: ignore[arg-type]

    assert (cost["cmdstat_lrange"], cost["cmdstat_hmget"]) == (1, 1)
    assert sum(cost.values()) == 3


async def test_the_cost_of_a_task_does_not_depend_on_the_number_of_tasks(
    store: AsyncStore, keys: Keys, seeds: Seeds
) -> None:
    meter = Meter(store)

    async def cost_of(task_id: str) -> list[dict[str, int]]:
        message_request, ref = request(task_id=task_id, context_id=CONTEXT), RunRef(task_id, 1)
        operations: list[Operation[object]] = [
            create_task(keys, ANN, task_id, CONTEXT, message_request, caller=b"{}", retention=60),  # type: ignore[list-item]
            claim_run(keys, ref, token="k", runner="r", lease_us=1, working=True),  # type: ignore[list-item]
            settle_run(keys, ref, token="k", written_count=0, events=[status(COMPLETED)]),  # type: ignore[list-item]
            read_final_task(keys, ANN, task_id),  # type: ignore[list-item]
        ]
        return [await meter.cost_of(operation) for operation in operations]

    await seeds.create_task()  # the first task of the scope
    early_cost = await cost_of("one")
    await asyncio.gather(
        *(seeds.create_task() for _ in range(500)), *(seeds.create_task_in(COMPLETED) for _ in range(500))
    )

    assert await cost_of("another") == early_cost
