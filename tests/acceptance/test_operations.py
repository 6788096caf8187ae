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

from tests.support.clients import talk
from tests.support.clients.bindings import (
    BINDINGS,
    ServedFleet,
    collect,
    message_json,
    rest,
    rpc,
    sdk_client,
    send,
    serve_fleet,
    state,
    texts,
    wait_for_state,
)
from tests.support.clients.bindings import request as message
from tests.support.clients.faults import fault


@pytest.fixture(scope="module")
def served_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedFleet]:
    with serve_fleet(tmp_path_factory.mktemp("fleet"), pool="threads", concurrency=20) as served_fleet:
        yield served_fleet


@pytest.fixture(scope="module")
def fleet_without_worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedFleet]:
    """Gateway without a worker."""
    with serve_fleet(tmp_path_factory.mktemp("unmanned"), pool=None) as served_fleet:
        yield served_fleet


@pytest.fixture
async def echo(served_fleet: ServedFleet) -> AsyncIterator[Client]:
    async with sdk_client(served_fleet.gateway, "echo", streaming=False) as client:
        yield client


class TestWithoutAWorker:
    @pytest.mark.parametrize("binding", BINDINGS)
    async def test_a_message_is_accepted_and_waits(self, fleet_without_worker: ServedFleet, binding: str) -> None:
        async with sdk_client(fleet_without_worker.gateway, "echo", binding, streaming=False) as client:
            task = await send(client, "hello", immediately=True)

            assert state(task) == "SUBMITTED"
            assert await client.get_task(GetTaskRequest(id=task.id)) == task

    @pytest.mark.parametrize("binding", BINDINGS)
    async def test_a_queued_task_is_cancelled_at_once(self, fleet_without_worker: ServedFleet, binding: str) -> None:
        async with sdk_client(fleet_without_worker.gateway, "echo", binding, streaming=False) as client:
            task = await send(client, "hello", immediately=True)

            canceled_task = await client.cancel_task(CancelTaskRequest(id=task.id))

            assert state(canceled_task) == "CANCELED"
            assert canceled_task.status.timestamp.ToNanoseconds() >= task.status.timestamp.ToNanoseconds()

    async def test_a_stream_shows_the_task_before_any_worker_does(self, fleet_without_worker: ServedFleet) -> None:
        async with sdk_client(fleet_without_worker.gateway, "echo") as client:
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
        task_pages = [await client.list_tasks(ListTasksRequest(**params))]
        while task_pages[-1].next_page_token:
            task_pages.append(
                await client.list_tasks(ListTasksRequest(page_token=task_pages[-1].next_page_token, **params))
            )
        return task_pages

    @pytest.mark.parametrize("binding", BINDINGS)
    async def test_pages_show_every_task_once_newest_first(
        self, served_fleet: ServedFleet, binding: str, tasks: list[Task]
    ) -> None:
        async with sdk_client(served_fleet.gateway, "echo", binding) as client:
            for size in (1, 2, 3, 7, 100):
                pages = await self.pages(client, context_id=tasks[0].context_id, page_size=size)

                assert [task.id for page in pages for task in page.tasks] == [task.id for task in reversed(tasks)]
                assert {page.total_size for page in pages} == {7}
                assert {page.page_size for page in pages} == {size}
                assert [len(page.tasks) for page in pages[:-1]] == [size] * (len(pages) - 1)

    @pytest.mark.parametrize("binding", BINDINGS)
    async def test_filters_narrow_a_list(self, served_fleet: ServedFleet, binding: str, tasks: list[Task]) -> None:
        context_id = tasks[0].context_id
        async with sdk_client(served_fleet.gateway, "echo", binding) as client:
            state_list = await client.list_tasks(
                ListTasksRequest(context_id=context_id, status=TaskState.TASK_STATE_COMPLETED)
            )
            other_state_list = await client.list_tasks(
                ListTasksRequest(context_id=context_id, status=TaskState.TASK_STATE_WORKING)
            )
            other_context_list = await client.list_tasks(ListTasksRequest(context_id="another"))
            late_filter = ListTasksRequest(context_id=context_id)
            late_filter.status_timestamp_after.CopyFrom(tasks[4].status.timestamp)
            since = await client.list_tasks(late_filter)

        assert len(state_list.tasks) == state_list.total_size == 7
        assert not other_state_list.tasks
        assert not other_context_list.tasks
        assert {task.id for task in tasks[5:]} <= {task.id for task in since.tasks} <= {task.id for task in tasks[4:]}

    @pytest.mark.parametrize("binding", BINDINGS)
    async def test_artifacts_and_history_come_as_asked(
        self, served_fleet: ServedFleet, binding: str, tasks: list[Task]
    ) -> None:
        context_id = tasks[0].context_id
        async with sdk_client(served_fleet.gateway, "echo", binding) as client:
            bare = await client.list_tasks(ListTasksRequest(context_id=context_id, history_length=0))
            full = await client.list_tasks(
                ListTasksRequest(context_id=context_id, include_artifacts=True, history_length=1)
            )

        assert not any(task.artifacts or task.history for task in bare.tasks)
        assert [texts(task) for task in full.tasks] == [[str(number)] for number in reversed(range(7))]
        assert all(len(task.history) == 1 for task in full.tasks)

    async def test_a_list_without_artifacts_has_no_such_member(
        self, served_fleet: ServedFleet, tasks: list[Task]
    ) -> None:
        query = f"contextId={tasks[0].context_id}"
        over_http = rest(served_fleet.gateway, "GET", f"/tasks?{query}", agent="echo").json()
        over_rpc = rpc(served_fleet.gateway, "ListTasks", {"contextId": tasks[0].context_id}, agent="echo")["result"]
        list_with_artifacts = rest(
            served_fleet.gateway, "GET", f"/tasks?{query}&includeArtifacts=true", agent="echo"
        ).json()

        assert not any("artifacts" in task for task in (*over_http["tasks"], *over_rpc["tasks"]))
        assert over_http["nextPageToken"] == over_rpc["nextPageToken"] == ""
        assert all(task["artifacts"] for task in list_with_artifacts["tasks"])

    async def test_a_cancelled_task_moves_to_the_front(self, served_fleet: ServedFleet) -> None:
        context_id = uuid4().hex
        async with sdk_client(served_fleet.gateway, "silent", streaming=False) as client:
            first, second = [await send(client, "60", immediately=True, context_id=context_id) for _ in range(2)]
            await wait_for_state(client, first.id, "WORKING")
            await wait_for_state(client, second.id, "WORKING")
            await client.cancel_task(CancelTaskRequest(id=first.id))

            page = await client.list_tasks(ListTasksRequest(context_id=context_id))

            assert [(task.id, state(task)) for task in page.tasks] == [
                (first.id, "CANCELED"),
                (second.id, "WORKING"),
            ]
            await client.cancel_task(CancelTaskRequest(id=second.id))

    async def test_history_length_limits_what_a_task_shows(self, served_fleet: ServedFleet) -> None:
        async with sdk_client(served_fleet.gateway, "ask", streaming=False) as client:
            question_task = await send(client, "some")
            await send(client, "many", task_id=question_task.id)
            for length, expected in ((0, 0), (1, 1), (2, 2), (100, None)):
                task = await client.get_task(GetTaskRequest(id=question_task.id, history_length=length))
                complete_task = await client.get_task(GetTaskRequest(id=question_task.id))
                expected_length = len(complete_task.history) if expected is None else expected
                assert list(task.history) == list(complete_task.history)[len(complete_task.history) - expected_length :]
            await client.cancel_task(CancelTaskRequest(id=question_task.id))


class TestFollowUps:
    async def test_messages_to_a_working_task_take_their_turn_in_order(self, served_fleet: ServedFleet) -> None:
        async with sdk_client(served_fleet.gateway, "slow-ask", streaming=False) as client:
            task = await send(client, "1", immediately=True)
            for text in ("2", "3"):
                await send(client, text, immediately=True, task_id=task.id)
            ended_task = await send(client, "stop", task_id=task.id)

        assert state(ended_task) == "COMPLETED"
        assert texts(ended_task) == ["stopped"]
        assert [part.text for m in ended_task.history for part in m.parts if m.role == 1] == ["1", "2", "3", "stop"]

    async def test_a_blocking_follow_up_returns_at_the_end_of_its_own_turn(self, served_fleet: ServedFleet) -> None:
        async with sdk_client(served_fleet.gateway, "slow-ask", streaming=False) as client:
            task = await send(client, "1", immediately=True)

            answers = await asyncio.gather(*(send(client, text, task_id=task.id) for text in "23"))

            # a response has the state in which its turn ended, or the task's state if the next turn has also asked
            assert [state(answer) for answer in answers] == ["INPUT_REQUIRED"] * 2
            reply_texts = {answer.status.message.parts[0].text for answer in answers}
            assert reply_texts <= {"after 2?", "after 3?"}
            await client.cancel_task(CancelTaskRequest(id=task.id))

    async def test_a_streamed_answer_goes_on_with_the_task(self, served_fleet: ServedFleet) -> None:
        async with sdk_client(served_fleet.gateway, "ask") as client:
            (first, *_), last = await self.stream(client, "some"), None
            events = await self.stream(client, "7", task_id=first.task.id)
            last = events[-1]

        assert events[0].task.id == first.task.id
        assert [part.text for part in events[0].task.history[-1].parts] == ["7"]
        assert state(last.status_update) == "COMPLETED"  # type: ignore[arg-type]

    async def stream(self, client: Client, text: str, **fields: Any) -> list[Any]:
        return await collect(client.send_message(message(text, **fields)))

    async def test_a_task_that_waits_is_cancelled_at_once(self, served_fleet: ServedFleet) -> None:
        async with sdk_client(served_fleet.gateway, "ask", streaming=False) as client:
            question_task = await send(client, "some")

            canceled_task = await client.cancel_task(CancelTaskRequest(id=question_task.id))

        assert state(canceled_task) == "CANCELED"

    async def test_a_cancelled_tasks_waiting_messages_are_dropped(self, served_fleet: ServedFleet) -> None:
        async with sdk_client(served_fleet.gateway, "slow-ask", streaming=False) as client:
            task = await send(client, "1", immediately=True)
            await send(client, "2", immediately=True, task_id=task.id)

            canceled_task = await client.cancel_task(CancelTaskRequest(id=task.id))

            assert state(canceled_task) == "CANCELED"
        received_fault = await fault(
            served_fleet.gateway, "JSONRPC", "SendMessage", message_json(taskId=task.id), agent="slow-ask"
        )
        assert received_fault.reason == "UNSUPPORTED_OPERATION"

    async def test_an_agents_refusal_and_its_failure_end_the_task(self, served_fleet: ServedFleet) -> None:
        for agent, ends in (("refuse", "REJECTED"), ("fail", "FAILED")):
            async with sdk_client(served_fleet.gateway, agent, streaming=False) as client:
                task = await send(client)
            assert state(task) == ends
            assert "secret" not in str(task)

    async def test_a_context_may_hold_many_tasks(self, served_fleet: ServedFleet, echo: Client) -> None:
        first = await send(echo, "one")
        second = await send(echo, "two", context_id=first.context_id, reference_task_ids=[first.id])

        assert second.id != first.id
        assert second.context_id == first.context_id
        assert list(second.history[0].reference_task_ids) == [first.id]


class TestDirectAnswers:
    @pytest.mark.parametrize("binding", BINDINGS)
    async def test_a_message_that_comes_late_ends_the_streamed_task(
        self, served_fleet: ServedFleet, binding: str
    ) -> None:
        async with sdk_client(served_fleet.gateway, "late-direct", binding) as client:
            events = await collect(client.send_message(message("1.5")))

        assert events[0].HasField("task")
        assert state(events[-1].status_update) == "COMPLETED"  # type: ignore[arg-type]
        assert events[-1].status_update.status.message.parts[0].text == "directly"
        assert not any(event.HasField("message") for event in events)

    async def test_an_immediate_call_gives_a_task_that_ends_with_the_message(self, served_fleet: ServedFleet) -> None:
        async with sdk_client(served_fleet.gateway, "direct", streaming=False) as client:
            task = await send(client, "0", immediately=True)
            ended_task = await wait_for_state(client, task.id, "COMPLETED")

        assert ended_task.status.message.parts[0].text == "directly"

    @pytest.mark.parametrize("streaming", [False, True])
    async def test_a_message_alone_leaves_no_task_in_the_list(self, served_fleet: ServedFleet, streaming: bool) -> None:
        context = f"direct-{streaming}"
        async with sdk_client(served_fleet.gateway, "direct", streaming=streaming) as client:
            [answer] = await collect(client.send_message(message("0", context_id=context)))
            task_list = await client.list_tasks(ListTasksRequest(context_id=context))

        assert answer.HasField("message")
        assert (list(task_list.tasks), task_list.total_size) == ([], 0)

    async def test_a_blocking_call_gives_a_message_alone_with_its_context(self, served_fleet: ServedFleet) -> None:
        answer = rpc(served_fleet.gateway, "SendMessage", message_json("0", contextId="chat"), agent="direct")["result"]

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
        self, served_fleet: ServedFleet, agent: str, text: str, length: int | None
    ) -> None:
        query = {} if length is None else {"historyLength": length}

        task = talk.send(served_fleet.gateway, agent, text, **query)

        url = f"{served_fleet.gateway.url}/agents/{agent}/tasks/{task['id']}"
        assert task == httpx.get(url, params=query, headers=talk.HEADERS, timeout=talk.TIMEOUT).json()
        assert len(task.get("history", ())) <= (5 if length is None else length)
