"""A feature outside the package takes part in the decisions of the store, without a change of any other code."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import pytest
from a2a.types import AgentCard
from a2a.utils.errors import InvalidParamsError

from a2a_celery import ConfigError, agents, features
from a2a_celery.agents import Agent
from a2a_celery.cli.client.task_commands import list_
from a2a_celery.cli.commands import a2a as commands
from a2a_celery.cli.operator import list_tasks
from a2a_celery.features import FEATURES
from a2a_celery.features.idempotency.section import IdempotencyKey
from a2a_celery.gateway.operator import stored_tasks
from a2a_celery.lifecycle.states import FAILED, SUBMITTED, WORKING
from a2a_celery.operations.limits import error_of
from a2a_celery.operations.requests import sections_for_message
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.tasks.commands import continue_task, create_task
from a2a_celery.store.tasks.replies import Known
from a2a_celery.store.verbs import Section
from tests.features import tagged as tagged_feature
from tests.features.tagged import TAG_FILTER, Tagged
from tests.features.tagged.command import command as count_tagged
from tests.features.tagged.section import tag_index
from tests.support import ROOT
from tests.support.clients.store_operator import Command, ids
from tests.support.store.replies import begins, waits
from tests.support.store.seeds import ANN, CONTEXT, RETENTION, Seeds, request


@pytest.fixture(autouse=True)
def tagged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add the feature to the lists of features."""
    monkeypatch.setattr(features, "FEATURES", (*FEATURES, Tagged))
    monkeypatch.setattr(agents, "FEATURE_OPTIONS", agents.FEATURE_OPTIONS | Tagged.OPTIONS)
    monkeypatch.setattr(stored_tasks, "TASK_FILTERS", (*features.TASK_FILTERS, TAG_FILTER))
    monkeypatch.setitem(list_tasks.STORE_MODES, TAG_FILTER.name, partial(list_tasks.list_tasks, TAG_FILTER))


def agent(**options: Any) -> Agent:
    return Agent.with_options("agent", AgentCard(name="agent"), "function", print, None, options)


async def create(store: AsyncStore, keys: Keys, task_id: str, sections: Sequence[Section]) -> Any:
    message = request("hello", task_id, CONTEXT)
    call = create_task(keys, ANN, task_id, CONTEXT, message, caller=b"{}", retention=RETENTION, sections=sections)
    return await store.run(call)


async def test_a_tag_is_written_to_the_record(store: AsyncStore, keys: Keys) -> None:
    sections = sections_for_message(agent(tag="red"), keys, ANN, request())

    assert begins(await create(store, keys, "t", sections))
    assert await store.redis.hget(keys.task("t").record, "tag") == b"red"


async def test_a_tagged_task_is_listed_in_each_state(store: AsyncStore, keys: Keys, seeds: Seeds) -> None:
    async def ids_by_state() -> dict[int, list[bytes]]:
        names = [(state, f"{tag_index(keys, 'red')}{state}") for state in (SUBMITTED, WORKING, FAILED)]
        return {state: ids for state, name in names if (ids := await store.redis.zrange(name, 0, -1))}

    sections = sections_for_message(agent(tag="red"), keys, ANN, request())
    await create(store, keys, "t", sections)
    assert await ids_by_state() == {SUBMITTED: [b"t"]}

    claim = await seeds.claim_run("t")
    assert await ids_by_state() == {WORKING: [b"t"]}

    await seeds.recover_run(claim.ref)
    new_id, _ = await seeds.requeue_task("t")
    assert await ids_by_state() == {SUBMITTED: [new_id.encode()], FAILED: [b"t"]}


async def test_a_further_message_of_a_tagged_task_lists_the_task_once(
    store: AsyncStore, keys: Keys, seeds: Seeds
) -> None:
    sections = sections_for_message(agent(tag="red"), keys, ANN, request())
    await create(store, keys, "t", sections)

    message = request("more", "t", CONTEXT)
    call = continue_task(keys, ANN, "t", message, "", caller=b"{}", nonce="n", sections=sections)
    assert waits(await store.run(call))

    assert await store.redis.hget(keys.task("t").record, "joined_indexes") == tag_index(keys, "red").encode()


async def test_operators_list_the_tasks_with_a_tag(
    store: AsyncStore, keys: Keys, schema_record: None, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create(store, keys, "t", sections_for_message(agent(tag="red"), keys, ANN, request()))
    await create(store, keys, "u", sections_for_message(agent(tag="blue"), keys, ANN, request()))

    page = await stored_tasks.stored_tasks(store, keys, [], {"tag": "red"})
    assert [task["id"] for task in page["tasks"]] == ["t"]
    assert page.keys() == {"tasks", "next"}
    with pytest.raises(InvalidParamsError, match="tag: Leave it out, or leave out the schedule"):
        await stored_tasks.stored_tasks(store, keys, [], {"tag": "red", "schedule": "nightly"})

    options = [*list_.params, click.Option(["--tag"], help=TAG_FILTER.help)]  # as if the package had the filter
    monkeypatch.setattr(list_, "params", options)
    assert ids(await asyncio.to_thread(command, "list", "--tag", "blue", "--json")) == {"u"}


async def test_operators_count_the_tasks_with_a_tag(
    store: AsyncStore, keys: Keys, schema_record: None, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(commands.commands, "count-tagged", count_tagged)  # as if the package had the command
    await create(store, keys, "t", sections_for_message(agent(tag="red"), keys, ANN, request()))

    assert (await asyncio.to_thread(command, "count-tagged", "red")).stdout == "1\n"
    assert "count-tagged  Print the number of tasks with TAG." in (await asyncio.to_thread(command, "--help")).stdout


async def test_a_forbidden_tag_creates_no_task(store: AsyncStore, keys: Keys) -> None:
    sections = sections_for_message(agent(tag="forbidden"), keys, ANN, request())

    reply = await create(store, keys, "t", sections)

    assert str(error_of(reply)) == "No task may have the tag 'forbidden'"
    assert not await store.redis.exists(keys.task("t").record)


async def test_two_features_take_part_in_one_decision(store: AsyncStore, keys: Keys) -> None:
    both = sections_for_message(agent(tag="red", idempotency_window=60), keys, ANN, request())

    assert [type(section).__name__ for section in both] == [IdempotencyKey.__name__, "Tag"]
    assert begins(await create(store, keys, "t", both))
    assert await create(store, keys, "u", both) == Known("t", 1, 0)
    assert not await store.redis.exists(keys.task("u").record)


async def test_a_task_of_another_agent_has_no_field_of_the_feature(store: AsyncStore, keys: Keys) -> None:
    assert sections_for_message(agent(), keys, ANN, request()) == []

    assert begins(await create(store, keys, "t", []))
    assert not await store.redis.hexists(keys.task("t").record, "tag")


def test_an_invalid_option_of_the_feature_is_refused() -> None:
    with pytest.raises(ConfigError, match="agent 'agent': tag = 1: a text"):
        agent(tag=1)


def test_the_example_of_the_page_is_the_code_of_the_feature() -> None:
    page = (ROOT / "docs" / "architecture" / "features.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^ *```(?:python|lua)\n(.*?)^ *```", page, re.MULTILINE | re.DOTALL)
    folder = Path(tagged_feature.__file__).parent
    code = [lines_of(path.read_text(encoding="utf-8")) for path in folder.iterdir() if path.is_file()]

    parts = [part for block in blocks for part in lines_of(block).split("...\n")]

    assert [part for part in parts if not any(part in text for text in code)] == []
    assert len(blocks) == 5


def lines_of(text: str) -> str:
    """Return the lines of `text` without indentation and empty lines."""
    return "".join(f"{line.strip()}\n" for line in text.splitlines() if line.strip())
