"""Operations beyond the common case: lists, follow-ups, cancels, and answers without a task."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import uuid4

import httpx
import pytest
from a2a.client import Client
from a2a.types import CancelTaskRequest, GetTaskRequest, ListTasksRequest, ListTasksResponse, Task, TaskState

from tests.support import talk
from tests.support.clients import (
    BINDINGS,
    Served,
    collect,
    message_json,
    rest,
    rpc,
    sdk_client,
    send,
    serving,
    state,
    texts,
    until_state,
)
from tests.support.clients import request as message
from tests.support.faults import fault


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("fleet"), pool="threads", concurrency=20) as served:
        yield served


@pytest.fixture(scope="module")
def unmanned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Gateway without a worker."""
    with serving(tmp_path_factory.mktemp("unmanned"), pool=None) as served:
        yield served


@pytest.fixture
async def echo(served: Served) -> AsyncIterator[Client]:
    async with sdk_client(served.gateway, "echo", streaming=False) as client:
        yield client


class TestWithoutAWorker:
    @pytest.mark.parametrize("binding", BINDINGS)
    async def test_a_message_is_accepted_and_waits(self, unmanned: Served, binding: str) -> None:
        async with sdk_client(unmanned.gateway, "echo", binding, streaming=False) as client:
            task = await send(client, "hello", immediately=True)

            assert state(task) == "SUBMITTED"
            assert await client.get_task(GetTaskRequest(id=task.id)) == task

    @pytest.mark.parametrize("binding", BINDINGS)
    async def test_a_queued_task_is_cancelled_at_once(self, unmanned: Served, binding: str) -> None:
        async with sdk_client(unmanned.gateway, "echo", binding, streaming=False) as client:
            task = await send(client, "hello", immediately=True)

            canceled = await client.cancel_task(CancelTaskRequest(id=task.id))

            assert state(canceled) == "CANCELED"
            assert canceled.status.timestamp.ToNanoseconds() >= task.status.timestamp.ToNanoseconds()

    async def test_a_stream_shows_the_task_before_any_worker_does(self, unmanned: Served) -> None:
        async with sdk_client(unmanned.gateway, "echo") as client:
            events = client.send_message(message("hello"))
            first = await anext(events)
            assert state(first.task) == "SUBMITTED"
            await client.cancel_task(CancelTaskRequest(id=first.task.id))

            rest_of_them = await collect(events)

        assert [state(event.status_update) for event in rest_of_them] == ["CANCELED"]  # type: ignore[arg-type]


class TestLists:
    @pytest.fixture
    async def tasks(self, echo: Client) -> list[Task]:
        """Seven COMPLETED tasks of one context, oldest first."""
        context_id = uuid4().hex
        return [await send(echo, str(number), context_id=context_id) for number in range(7)]

    async def pages(self, client: Client, **params: Any) -> list[ListTasksResponse]:
        found = [await client.list_tasks(ListTasksRequest(**params))]
        while found[-1].next_page_token:
            found.append(await client.list_tasks(ListTasksRequest(page_token=found[-1].next_page_token, **params)))
        return found

    @pytest.mark.parametrize("binding", BINDINGS)
    async def test_pages_show_every_task_once_newest_first(
        self, served: Served, binding: str, tasks: list[Task]
    ) -> None:
        async with sdk_client(served.gateway, "echo", binding) as client:
            for size in (1, 2, 3, 7, 100):
                pages = await self.pages(client, context_id=tasks[0].context_id, page_size=size)

                assert [task.id for page in pages for task in page.tasks] == [task.id for task in reversed(tasks)]
                assert {page.total_size for page in pages} == {7}
                assert {page.page_size for page in pages} == {size}
                assert [len(page.tasks) for page in pages[:-1]] == [size] * (len(pages) - 1)

    @pytest.mark.parametrize("binding", BINDINGS)
    async def test_filters_narrow_a_list(self, served: Served, binding: str, tasks: list[Task]) -> None:
        context_id = tasks[0].context_id
        async with sdk_client(served.gateway, "echo", binding) as client:
            in_state = await client.list_tasks(
                ListTasksRequest(context_id=context_id, status=TaskState.TASK_STATE_COMPLETED)
            )
            in_other = await client.list_tasks(
                ListTasksRequest(context_id=context_id, status=TaskState.TASK_STATE_WORKING)
            )
            elsewhere = await client.list_tasks(ListTasksRequest(context_id="another"))
            late = ListTasksRequest(context_id=context_id)
            late.status_timestamp_after.CopyFrom(tasks[4].status.timestamp)
            since = await client.list_tasks(late)

        assert len(in_state.tasks) == in_state.total_size == 7
        assert not in_other.tasks
        assert not elsewhere.tasks
        assert {task.id for task in tasks[5:]} <= {task.id for task in since.tasks} <= {task.id for task in tasks[4:]}

    @pytest.mark.parametrize("binding", BINDINGS)
    async def test_artifacts_and_history_come_as_asked(self, served: Served, binding: str, tasks: list[Task]) -> None:
        context_id = tasks[0].context_id
        async with sdk_client(served.gateway, "echo", binding) as client:
            bare = await client.list_tasks(ListTasksRequest(context_id=context_id, history_length=0))
            full = await client.list_tasks(
                ListTasksRequest(context_id=context_id, include_artifacts=True, history_length=1)
            )

        assert not any(task.artifacts or task.history for task in bare.tasks)
        assert [texts(task) for task in full.tasks] == [[str(number)] for number in reversed(range(7))]
        assert all(len(task.history) == 1 for task in full.tasks)

    async def test_a_list_without_artifacts_has_no_such_member(self, served: Served, tasks: list[Task]) -> None:
        query = f"contextId={tasks[0].context_id}"
        over_http = rest(served.gateway, "GET", f"/tasks?{query}", agent="echo").json()
        over_rpc = rpc(served.gateway, "ListTasks", {"contextId": tasks[0].context_id}, agent="echo")["result"]
        with_them = rest(served.gateway, "GET", f"/tasks?{query}&includeArtifacts=true", agent="echo").json()

        assert not any("artifacts" in task for task in (*over_http["tasks"], *over_rpc["tasks"]))
        assert over_http["nextPageToken"] == over_rpc["nextPageToken"] == ""
        assert all(task["artifacts"] for task in with_them["tasks"])

    async def test_a_cancelled_task_moves_to_the_front(self, served: Served) -> None:
        context_id = uuid4().hex
        async with sdk_client(served.gateway, "silent", streaming=False) as client:
            first, second = [await send(client, "60", immediately=True, context_id=context_id) for _ in range(2)]
            await until_state(client, first.id, "WORKING")
            await until_state(client, second.id, "WORKING")
            await client.cancel_task(CancelTaskRequest(id=first.id))

            page = await client.list_tasks(ListTasksRequest(context_id=context_id))

            assert [(task.id, state(task)) for task in page.tasks] == [
                (first.id, "CANCELED"),
                (second.id, "WORKING"),
            ]
            await client.cancel_task(CancelTaskRequest(id=second.id))

    async def test_history_length_limits_what_a_task_shows(self, served: Served) -> None:
        async with sdk_client(served.gateway, "ask", streaming=False) as client:
            asked = await send(client, "some")
            await send(client, "many", task_id=asked.id)
            for length, expected in ((0, 0), (1, 1), (2, 2), (100, None)):
                task = await client.get_task(GetTaskRequest(id=asked.id, history_length=length))
                whole = await client.get_task(GetTaskRequest(id=asked.id))
                wanted = len(whole.history) if expected is None else expected
                assert list(task.history) == list(whole.history)[len(whole.history) - wanted :]
            await client.cancel_task(CancelTaskRequest(id=asked.id))


class TestFollowUps:
    async def test_messages_to_a_working_task_take_their_turn_in_order(self, served: Served) -> None:
        async with sdk_client(served.gateway, "slow-ask", streaming=False) as client:
            task = await send(client, "1", immediately=True)
            for text in ("2", "3"):
                await send(client, text, immediately=True, task_id=task.id)
            ended = await send(client, "stop", task_id=task.id)

        assert state(ended) == "COMPLETED"
        assert texts(ended) == ["stopped"]
        assert [part.text for m in ended.history for part in m.parts if m.role == 1] == ["1", "2", "3", "stop"]

    async def test_a_blocking_follow_up_returns_at_the_end_of_its_own_turn(self, served: Served) -> None:
        async with sdk_client(served.gateway, "slow-ask", streaming=False) as client:
            task = await send(client, "1", immediately=True)

            answers = await asyncio.gather(*(send(client, text, task_id=task.id) for text in "23"))

            # a response has the state in which its turn ended, or the task's state if the next turn has also asked
            assert [state(answer) for answer in answers] == ["INPUT_REQUIRED"] * 2
            received = {answer.status.message.parts[0].text for answer in answers}
            assert received <= {"after 2?", "after 3?"}
            await client.cancel_task(CancelTaskRequest(id=task.id))

    async def test_a_streamed_answer_goes_on_with_the_task(self, served: Served) -> None:
        async with sdk_client(served.gateway, "ask") as client:
            (first, *_), last = await self.stream(client, "some"), None
            events = await self.stream(client, "7", task_id=first.task.id)
            last = events[-1]

        assert events[0].task.id == first.task.id
        assert [part.text for part in events[0].task.history[-1].parts] == ["7"]
        assert state(last.status_update) == "COMPLETED"  # type: ignore[arg-type]

    async def stream(self, client: Client, text: str, **fields: Any) -> list[Any]:
        return await collect(client.send_message(message(text, **fields)))

    async def test_a_task_that_waits_is_cancelled_at_once(self, served: Served) -> None:
        async with sdk_client(served.gateway, "ask", streaming=False) as client:
            asked = await send(client, "some")

            canceled = await client.cancel_task(CancelTaskRequest(id=asked.id))

        assert state(canceled) == "CANCELED"

    async def test_a_cancelled_tasks_waiting_messages_are_dropped(self, served: Served) -> None:
        async with sdk_client(served.gateway, "slow-ask", streaming=False) as client:
            task = await send(client, "1", immediately=True)
            await send(client, "2", immediately=True, task_id=task.id)

            canceled = await client.cancel_task(CancelTaskRequest(id=task.id))

            assert state(canceled) == "CANCELED"
        found = await fault(served.gateway, "JSONRPC", "SendMessage", message_json(taskId=task.id), agent="slow-ask")
        assert found.reason == "UNSUPPORTED_OPERATION"

    async def test_an_agents_refusal_and_its_failure_end_the_task(self, served: Served) -> None:
        for agent, ends in (("refuse", "REJECTED"), ("fail", "FAILED")):
            async with sdk_client(served.gateway, agent, streaming=False) as client:
                task = await send(client)
            assert state(task) == ends
            assert "secret" not in str(task)

    async def test_a_context_may_hold_many_tasks(self, served: Served, echo: Client) -> None:
        first = await send(echo, "one")
        second = await send(echo, "two", context_id=first.context_id, reference_task_ids=[first.id])

        assert second.id != first.id
        assert second.context_id == first.context_id
        assert list(second.history[0].reference_task_ids) == [first.id]


class TestDirectAnswers:
    @pytest.mark.parametrize("binding", BINDINGS)
    async def test_a_message_that_comes_late_ends_the_streamed_task(self, served: Served, binding: str) -> None:
        async with sdk_client(served.gateway, "direct", binding) as client:
            events = await collect(client.send_message(message("1.5")))

        assert events[0].HasField("task")
        assert state(events[-1].status_update) == "COMPLETED"  # type: ignore[arg-type]
        assert events[-1].status_update.status.message.parts[0].text == "directly"
        assert not any(event.HasField("message") for event in events)

    async def test_an_immediate_call_gives_a_task_that_ends_with_the_message(self, served: Served) -> None:
        async with sdk_client(served.gateway, "direct", streaming=False) as client:
            task = await send(client, "0", immediately=True)
            ended = await until_state(client, task.id, "COMPLETED")

        assert ended.status.message.parts[0].text == "directly"

    @pytest.mark.parametrize("streaming", [False, True])
    async def test_a_message_alone_leaves_no_task_in_the_list(self, served: Served, streaming: bool) -> None:
        context = f"direct-{streaming}"
        async with sdk_client(served.gateway, "direct", streaming=streaming) as client:
            [answer] = await collect(client.send_message(message("0", context_id=context)))
            listed = await client.list_tasks(ListTasksRequest(context_id=context))

        assert answer.HasField("message")
        assert (list(listed.tasks), listed.total_size) == ([], 0)

    async def test_a_blocking_call_gives_a_message_alone_with_its_context(self, served: Served) -> None:
        answer = rpc(served.gateway, "SendMessage", message_json("0", contextId="chat"), agent="direct")["result"]

        assert list(answer) == ["message"]
        assert answer["message"]["contextId"] == "chat"
        assert answer["message"]["role"] == "ROLE_AGENT"
        assert "taskId" not in answer["message"]


class TestABlockingMessage:
    """Responses to blocking messages. The notification of a short turn contains the result, and the result of a long
    turn is read from the store. Clients cannot tell the difference."""

    @pytest.mark.parametrize("length", [None, 0, 1, 5])
    @pytest.mark.parametrize(
        ("agent", "text"),
        [
            ("echo", "ä\n"),
            ("data", ""),
            ("ask", ""),
            ("refuse", ""),
            ("fail", ""),
            ("full", ""),
            ("whole", ""),
            ("count", "30"),
        ],
    )
    def test_is_answered_with_the_task_as_it_can_be_read(
        self, served: Served, agent: str, text: str, length: int | None
    ) -> None:
        wanted = {} if length is None else {"historyLength": length}

        task = talk.send(served.gateway, agent, text, **wanted)

        url = f"{served.gateway.url}/agents/{agent}/tasks/{task['id']}"
        assert task == httpx.get(url, params=wanted, headers=talk.HEADERS, timeout=talk.TIMEOUT).json()
        assert len(task.get("history", ())) <= (5 if length is None else length)
