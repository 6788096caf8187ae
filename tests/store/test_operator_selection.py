"""Operator commands on the tasks of all callers: ``a2a list --all`` and ``cancel --all``."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from kombu.exceptions import OperationalError
from kombu.pidbox import Mailbox

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.cli.operator.selection import Selection
from a2a_celery.features.webhooks.deliveries import abandon_delivery
from a2a_celery.features.webhooks.push_configs import save_push_config
from a2a_celery.lifecycle import Failure, final_event
from a2a_celery.lifecycle.references import Scope
from a2a_celery.lifecycle.states import CANCELED, COMPLETED, INPUT_REQUIRED, SUBMITTED, WORKING
from a2a_celery.store import AsyncStore, Keys, SyncStore
from a2a_celery.store.admin.scan import newest_tasks, tasks_in
from a2a_celery.store.admin.schema import SCHEMA
from a2a_celery.store.runs.release import delegate_to_canvas
from tests.support.clients.store_operator import Command, ids, json_lines
from tests.support.store.delivery_cursors import Webhooks, new
from tests.support.store.seeds import CONTEXT, Seeds, chunk, status
from tests.support.waiting import eventually_async

ANN, BOB = Scope("agent", "acme", "ann"), Scope("agent", "", "bob/?*")
OTHER = Scope("other", "acme", "ann")

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)

pytestmark = pytest.mark.usefixtures("schema_record")


@pytest.fixture
async def five(seeds: Seeds, keys: Keys) -> None:
    """Create five tasks of two agents, two tenants and two owners in five states."""
    await seeds.create_task(ANN, task_id="waits")
    await seeds.claim_run(task_id=await seeds.create_task(ANN, task_id="works", context_id="its-own"))
    await seeds.create_task_in(INPUT_REQUIRED, scope=BOB, task_id="asks")
    await seeds.create_task_in(COMPLETED, scope=BOB, task_id="done")
    await seeds.create_task(OTHER, task_id="others")


@pytest.mark.usefixtures("five")
class TestList:
    @pytest.mark.parametrize(
        ("filters", "expected"),
        [
            ((), "others done asks works waits"),
            (("--agent", "agent"), "done asks works waits"),
            (("--owner", "ann"), "others works waits"),
            (("--owner", "bob/?*"), "done asks"),
            (("--owner", "*"), ""),
            (("--tenant", ""), "done asks"),
            (("--tenant", "acme", "--agent", "agent", "--owner", "ann"), "works waits"),
            (("--context", "its-own"), "works"),
            (("--state", "submitted"), "others waits"),
            (("--state", "completed", "--owner", "ann"), ""),
            (("--since", "1h", "--agent", "other"), "others"),
            (("--until", "1h"), ""),
            (("--since", "2030-01-01"), ""),
            (("--limit", "2"), "others done"),
        ],
    )
    def test_the_list_is_filtered_and_starts_with_the_newest(
        self, command: Command, filters: tuple[str, ...], expected: str
    ) -> None:
        assert [entry["task"] for entry in json_lines(command("list", "--all", "--json", *filters))] == expected.split()

    async def test_failures_have_a_reason_and_a_reference(self, command: Command, seeds: Seeds) -> None:
        claim = await seeds.claim_run(scope=BOB, task_id=await seeds.create_task(BOB, task_id="lost"))
        await seeds.recover_run(claim.ref)
        failure = final_event(Failure(reference="0123456789ab"), "broken", CONTEXT)
        assert failure is not None
        await seeds.settle_run(await seeds.claim_run(await seeds.create_task(BOB, task_id="broken")), failure)

        text = command("list", "--all", "--state", "failed").stdout
        entries = json_lines(command("list", "--all", "--state", "failed", "--json"))

        assert re.search(r"^broken .*exception +0123456789ab", text, re.MULTILINE)
        assert re.search(r"^lost .*lost, dead letter +- ", text, re.MULTILINE)
        assert [(entry["reason"], entry["reference"], entry["deadLetter"]) for entry in entries] == [
            ("exception", "0123456789ab", False),
            ("lost", None, True),
        ]

    def test_the_json_output_has_the_worker_and_the_state(self, command: Command) -> None:
        [entry] = json_lines(command("list", "--all", "--json", "--context", "its-own"))

        assert datetime.now(UTC) - datetime.fromisoformat(entry.pop("since")) < timedelta(minutes=5)
        assert entry == {
            "task": "works",
            "agent": "agent",
            "tenant": "acme",
            "owner": "ann",
            "contextId": "its-own",
            "state": "WORKING",
            "begun": entry["begun"],
            "run": 1,
            "attempt": 1,
            "worker": "runner",
            "process": "runner",
            "reason": None,
            "reference": None,
            "deadLetter": False,
        }

    def test_the_text_output_is_a_table(self, command: Command) -> None:
        heading, first, *_, note = command("list", "--all", "--limit", "4").stdout.splitlines()

        assert heading.split() == ["TASK", "STATE", "AGENT", "SINCE", "(UTC)", "TENANT", "OWNER", "CONTEXT"]
        assert first.split()[:3] == ["others", "SUBMITTED", "other"]
        assert note == "… more tasks exist: raise --limit"

    @pytest.mark.parametrize(
        ("arguments", "error"),
        [
            (("list", "--owner", "ann"), "--owner needs --all or --stuck"),
            (("list", "--all", "--older-than", "5"), "--older-than needs --stuck"),
            (("list", "--all", "--url", "http://x"), "leave out --url"),
            (
                ("list", "--all", "--bearer-file", __file__),
                "--all reads the store, not a gateway: leave out --bearer-file",
            ),
            (("list", "--stuck", "--bearer-file", __file__), "--stuck reads the store, not a gateway"),
            (("list", "--schedule", "daily", "--api-key-file", __file__), "leave out --api-key-file"),
            (("cancel", "--all", "--bearer-file", __file__), "leave out --bearer-file"),
            (("list", "--all", "--since", "yesterday"), "write 2030-01-31T12:00 (UTC), or how long ago"),
            (("cancel", "--all", "-H", "a: b"), "leave out --header"),
            (("cancel", "--all", "waits"), "not both"),
            (("cancel", "--yes", "waits"), "--yes needs --all"),
            (("cancel", "--since", "1h", "waits"), "--since needs --all"),
            (("cancel",), "Missing argument 'TASK'"),
            (
                ("cancel", "--all"),
                "4 tasks (3 of agent, 1 of other) would be cancelled: there is no terminal to confirm, so pass --yes",
            ),
            (("requeue", "--owner", "ann", "waits"), "not both"),
        ],
    )
    def test_wrong_usage_is_an_error_with_a_hint(
        self, command: Command, arguments: tuple[str, ...], error: str
    ) -> None:
        assert error in command(*arguments, code=2).stderr


async def test_credentials_in_the_environment_do_not_hinder_a_command_on_the_store(
    command: Command, seeds: Seeds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another command in the same shell may use the credentials."""
    await seeds.create_task(ANN, task_id="waits")
    monkeypatch.setenv("A2A_BEARER_FILE", __file__)
    monkeypatch.setenv("A2A_API_KEY_FILE", __file__)

    assert ids(await asyncio.to_thread(command, "list", "--all", "--json")) == {"waits"}


async def test_times_are_those_of_the_state_and_of_the_run(command: Command, seeds: Seeds) -> None:
    runaway = await seeds.claim_run(task_id=await seeds.create_task(ANN, task_id="runaway"), working=False)
    await seeds.append_events(runaway, status(WORKING, "begins"))
    since = (await seeds.task("runaway")).status.timestamp.ToJsonString()
    await seeds.append_events(runaway, status(WORKING, "goes on"), status(WORKING, "and on"), written_count=1)
    asks = await seeds.claim_run(task_id=await seeds.create_task(ANN, task_id="waits"))
    progress = (await seeds.task("runaway")).status.timestamp.ToJsonString()

    def list_ids(*filters: str) -> set[str]:
        return ids(command("list", "--all", "--json", *filters))

    [entry] = json_lines(await asyncio.to_thread(command, "list", "--all", "--json", "--until", since))
    assert (entry["task"], entry["since"]) == ("runaway", str(datetime.fromisoformat(since)).replace(" ", "T"))
    assert entry["begun"] < entry["since"]
    assert await asyncio.to_thread(list_ids, "--since", progress) == {"waits"}
    assert await asyncio.to_thread(list_ids, "--begun", entry["begun"]) == {"runaway"}
    assert await asyncio.to_thread(list_ids, "--begun", progress) == {"runaway"}

    selection = await asyncio.to_thread(command, "cancel", "--all", "--dry-run", "--json", "--until", since)
    assert ids(selection) == {"runaway"}
    selection = await asyncio.to_thread(command, "cancel", "--all", "--dry-run", "--json", "--begun", entry["begun"])
    assert ids(selection) == {"runaway"}

    await seeds.settle_run(runaway, status(INPUT_REQUIRED), written_count=3)
    await seeds.settle_run(asks, status(INPUT_REQUIRED))
    assert await asyncio.to_thread(list_ids, "--until", progress) == set(), "it has left that state"


async def read_all(redis_server: EmbeddedRedis, keys: Keys) -> list[str]:
    """Return the ids of the submitted tasks of all owners."""
    operator = SyncStore(redis_server.store_url)

    def ids_of_tasks() -> list[str]:
        names = operator.names(keys.indexes((None, None, None)))
        return [task.ref.task_id for task in tasks_in(operator, keys, names, frozenset({SUBMITTED}), page_size=3)]

    task_ids = await asyncio.to_thread(ids_of_tasks)
    operator.close()
    return task_ids


async def test_more_tasks_of_one_time_than_a_page_are_all_read(
    store: AsyncStore, keys: Keys, seeds: Seeds, redis_server: EmbeddedRedis
) -> None:
    task_ids = [await seeds.create_task(ANN) for _ in range(10)]
    index = f"{keys.scope_index(ANN)}{SUBMITTED}"
    await store.redis.zadd(index, dict.fromkeys(task_ids, await store.redis.zscore(index, task_ids[0]) or 0))

    assert await read_all(redis_server, keys) == sorted(task_ids, reverse=True)


async def test_a_long_list_is_read_page_by_page(
    store: AsyncStore, keys: Keys, seeds: Seeds, redis_server: EmbeddedRedis
) -> None:
    task_ids = [await seeds.create_task(Scope("agent", "", f"owner-{n % 4}")) for n in range(11)]
    await store.redis.zadd(f"{keys.scope_index(Scope('agent', '', 'owner-0'))}1", {"gone": 5})
    listed_ids = await read_all(redis_server, keys)

    assert listed_ids == task_ids[::-1]
    await store.redis.zrem(f"{keys.scope_index(Scope('agent', '', 'owner-0'))}1", "gone")


async def test_expired_tasks_take_no_place_on_a_page(
    store: AsyncStore, keys: Keys, seeds: Seeds, redis_server: EmbeddedRedis
) -> None:
    task_ids, indexes = [], [f"{keys.scope_index(scope)}{SUBMITTED}" for scope in (ANN, BOB)]
    for n in range(8):
        task_ids.append(await seeds.create_task((ANN, BOB)[n % 2]))
    expiries = {f"gone-{n}": "+inf" for n in range(7)}  # newer than every task
    await store.redis.zadd(indexes[0], expiries)

    newest = await store.run(newest_tasks(keys, indexes, limit=5))
    ids = await read_all(redis_server, keys)

    assert [task.ref.task_id for task in newest.tasks] == task_ids[:2:-1]
    assert ids == task_ids[::-1]
    await store.redis.zrem(indexes[0], *expiries)


@pytest.mark.usefixtures("five")
class TestCancelAll:
    async def test_a_dry_run_changes_nothing(self, command: Command, seeds: Seeds) -> None:
        data_before = await seeds.all_values()

        result = await asyncio.to_thread(command, "cancel", "--all", "--dry-run", "--json")
        output = await asyncio.to_thread(command, "cancel", "--all", "--dry-run", "--agent", "other")

        assert {(entry["task"], entry["outcome"]) for entry in json_lines(result)} == {
            (task, "dry-run") for task in ("waits", "works", "asks", "others")
        }
        assert output.stdout.splitlines()[-1] == "1 task (1 of other) would be cancelled"
        assert await seeds.all_values() == data_before

    async def test_idle_tasks_end_at_once_and_running_ones_are_reported(self, command: Command, seeds: Seeds) -> None:
        result = await asyncio.to_thread(
            command, "cancel", "--all", "--yes", "--timeout", "0.1", "--json", "--agent", "agent", code=1
        )

        assert {entry["task"]: entry["outcome"] for entry in json_lines(result)} == {
            "waits": "canceled",
            "asks": "canceled",
            "works": "running",
        }
        assert await seeds.states("waits") == [SUBMITTED, CANCELED]
        assert (await seeds.task("works")).status.state == WORKING
        assert (await seeds.task("others")).status.state == SUBMITTED
        output = await asyncio.to_thread(command, "cancel", "--all", "--yes", "--timeout", "0", code=1)
        assert output.stdout.startswith("2 tasks: 1 canceled, 0 had ended, 1 still running\nTASK ")

    async def test_an_agent_that_stops_is_waited_for(self, command: Command, seeds: Seeds) -> None:
        claim = await seeds.claim_run(task_id=await seeds.create_task(Scope("stopping", "", "ann"), task_id="stops"))
        cancelling = asyncio.create_task(
            asyncio.to_thread(command, "cancel", "--all", "--yes", "--json", "--limit", "1", "--agent", "stopping")
        )
        record = seeds.keys.task("stops").record
        await eventually_async(lambda: seeds.store.redis.hget(record, "canceled_event"))  # type: ignore[arg-type]
        await seeds.settle_run(claim, status(CANCELED))

        outcomes = {entry["task"]: entry["outcome"] for entry in json_lines(await cancelling)}

        assert outcomes == {"stops": "canceled"}

    async def test_the_command_asks_for_confirmation(
        self, command: Command, seeds: Seeds, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("a2a_celery.cli.operator.cancel_all.is_interactive", lambda: True)
        arguments = ("cancel", "--all", "--agent", "other")

        refusal = await asyncio.to_thread(command, *arguments, code=1, input="n\n")
        assert "Cancel 1 task (1 of other)? [y/N]" in refusal.stderr
        assert (await seeds.task("others")).status.state == SUBMITTED
        consent = await asyncio.to_thread(command, *arguments, input="y\n")

        assert consent.stdout.endswith("1 task: 1 canceled, 0 had ended, 0 still running\n")
        assert (await seeds.task("others")).status.state == CANCELED


@pytest.fixture
def revokes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], bool]]:
    """Ids of the Celery tasks in each broadcast, and whether they are terminated."""
    broadcasts: list[tuple[list[str], bool]] = []
    monkeypatch.setattr(
        Mailbox,
        "abcast",
        lambda _, command, arguments: broadcasts.append((arguments["task_id"], arguments["terminate"])),
    )
    return broadcasts


async def test_workers_are_notified_of_each_run(
    command: Command, seeds: Seeds, revokes: list[tuple[list[str], bool]]
) -> None:
    await asyncio.gather(*(seeds.create_task(ANN) for _ in range(250)))

    result = await asyncio.to_thread(command, "cancel", "--all", "--yes")

    assert len({name for names, _ in revokes for name in names}) == 250
    assert result.stdout == "250 tasks: 250 canceled, 0 had ended, 0 still running\n"


async def test_a_canvas_is_revoked_with_its_task(
    command: Command, seeds: Seeds, revokes: list[tuple[list[str], bool]]
) -> None:
    claim = await seeds.claim_run()
    canvas = '{"result":[["of-the-canvas",null],null],"until":9999999999}'
    await seeds.store.run(
        delegate_to_canvas(seeds.keys, claim.ref, token=claim.token, written_count=0, events=[], canvas=canvas)
    )

    [entry] = json_lines(await asyncio.to_thread(command, "cancel", "--all", "--yes", "--json"))

    assert (entry["task"], entry["outcome"]) == (claim.ref.task_id, "canceled")
    assert revokes == [(["of-the-canvas"], True)]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OperationalError("the broker is down"), "OperationalError: the broker is down"),
        (TimeoutError(), "the broker did not reply in time"),
    ],
    ids=["down", "silent"],
)
async def test_without_a_broker_tasks_still_end(
    command: Command, seeds: Seeds, monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    def raise_unavailable(*_: object) -> None:
        raise error

    monkeypatch.setattr(Mailbox, "abcast", raise_unavailable)
    await seeds.create_task(task_id="waits")

    result = await asyncio.to_thread(command, "cancel", "--all", "--yes")

    assert f"runs were not revoked, and workers will drop them on receipt: {reason}" in result.stderr
    assert (await seeds.task("waits")).status.state == CANCELED


@pytest.mark.parametrize(
    ("filters", "selects"),
    [
        ({}, True),
        ({"since": NOON, "until": NOON}, True),
        ({"since": NOON + timedelta(seconds=1)}, False),
        ({"until": NOON - timedelta(seconds=1)}, False),
        ({"state": "failed"}, False),
        ({"owner": ""}, False),
    ],
)
def test_a_further_row_has_a_time_and_matches_no_filter_on_tasks(filters: dict[str, Any], selects: bool) -> None:
    assert Selection(**filters).has_time(NOON) is selects


@pytest.mark.parametrize(
    "arguments",
    [("list", "--all"), ("stats",), ("requeue",), ("deliveries",), ("migrate", "--dry-run")],
    ids=lambda arguments: arguments[0],
)
async def test_an_unavailable_store_is_named_with_the_reason(
    command: Command, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.setenv("A2A_STORE_URL", "redis://:s3cret@127.0.0.1:1/3")

    assert command(*arguments, code=1).stderr == (
        "Error: the store redis://127.0.0.1:1/3 is unavailable (Connection refused): is Redis up, and is A2A_STORE_URL "
        "the one that the workers use?\n"
    )


async def test_an_interrupted_migration_can_be_run_again(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A2A_STORE_URL", "redis://127.0.0.1:1/3")

    assert command("migrate", code=1).stderr.endswith("Completed steps are kept: run the command again\n")


@pytest.mark.parametrize("names", [("lost", ""), ("", "c"), ("", "")])
async def test_an_empty_name_does_not_replay_all_deliveries(
    command: Command, store: AsyncStore, keys: Keys, seeds: Seeds, webhooks: Webhooks, names: tuple[str, str]
) -> None:
    await seeds.create_task(task_id="lost")
    await webhooks.save_config("lost")
    await seeds.claim_run("lost")
    assert await store.run(abandon_delivery(keys, await webhooks.lease_cursor(), failure={"reason": "down"}))

    result = await asyncio.to_thread(command, "deliveries", "replay", *names, code=1)

    assert f"task {names[0]} has no webhook {names[1]}" in result.stderr
    assert (await webhooks.delivery("lost")).died_us > 0


async def test_a_migration_needs_the_broker_to_find_older_workers(
    command: Command, store: AsyncStore, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.redis.hset(keys.installation, "schema", SCHEMA - 1)
    monkeypatch.setenv("CELERY_BROKER_URL", "redis://127.0.0.1:1/0")

    result = await asyncio.to_thread(command, "migrate", code=1)

    assert result.stderr.startswith("Error: OperationalError: Error 111")
    assert result.stderr.endswith("is the broker up? See CELERY_BROKER_URL\n")
    assert await store.redis.hget(keys.installation, "schema") == b"%d" % (SCHEMA - 1)


HOSTILE = "a\u009b2J\x7f\u202e\x1b\U000e0001"
"""Text of a client with control characters. JSON encoders escape only one of them."""


@pytest.mark.parametrize(
    "arguments",
    [
        ("list", "--all"),
        ("list", "--stuck", "--older-than", "0"),
        ("cancel", "--all", "--dry-run"),
        ("cancel", "--all", "--yes", "--timeout", "0"),
        ("get", "works", "--execution"),
        ("get", "works", "--tree"),
        ("get", "works", "--store"),
        ("deliveries",),
        ("deliveries", "replay", "--all"),
        ("deliveries", "show", "works", HOSTILE),
        ("requeue",),
    ],
    ids=" ".join,
)
async def test_no_command_prints_control_characters_of_a_client(
    command: Command, store: AsyncStore, keys: Keys, seeds: Seeds, webhooks: Webhooks, arguments: tuple[str, ...]
) -> None:
    scope = Scope("agent", HOSTILE, HOSTILE)
    for task_id in ("lost", "works"):
        await seeds.create_task(scope, task_id=task_id, context_id=HOSTILE)
        await store.run(save_push_config(keys, scope, task_id, new(HOSTILE)))
    await seeds.recover_run((await seeds.claim_run("lost")).ref)
    await seeds.append_events(await seeds.claim_run("works"), chunk(HOSTILE))
    for cursor in await webhooks.lease_cursors():
        failure = {"reason": HOSTILE, "status": 500}
        assert await store.run(abandon_delivery(keys, cursor, failure=failure))

    texts, lines = [
        await asyncio.to_thread(command, *arguments, *options, code=int("--yes" in arguments))
        for options in ((), ("--json",))
    ]

    assert all(line.isprintable() for result in (texts, lines) for line in result.output.split("\n"))
    assert all(isinstance(entry, dict) for entry in json_lines(lines))
