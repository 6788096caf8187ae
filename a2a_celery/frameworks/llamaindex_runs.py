"""Runtime for llama-index-workflows that records each run in the journal of its turn.

A workflow run is a sequence of ticks, such as an arriving event or the end of a step. Before the result of a step takes
effect, the ticks up to this result are written to the journal, with the changed values of the workflow's state. A later
run of the turn replays the ticks and continues on any worker. Steps that had not ended are executed again.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any, cast
from uuid import uuid4

from llama_index.core.agent.workflow import AgentWorkflow, ToolCall, ToolCallResult
from llama_index.core.agent.workflow.base_agent import BaseWorkflowAgent
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.core.storage.chat_store import SimpleChatStore
from llama_index.core.tools import ToolOutput
from pydantic import TypeAdapter
from workflows import Context, Workflow
from workflows.context.serializers import BaseSerializer
from workflows.context.state_store import StateStore
from workflows.events import (
    Event,
    HumanResponseEvent,
    InputRequiredEvent,
    SerializableEventType,
    StartEvent,
    StopEvent,
    WorkflowIdleEvent,
)
from workflows.handler import WorkflowHandler
from workflows.plugins.basic import BasicRuntime, JournalRecord, basic_runtime, get_current_run_id
from workflows.runtime.runtime_decorators import BaseInternalRunAdapterDecorator, BaseRuntimeDecorator
from workflows.runtime.types.plugin import InternalRunAdapter, RegisteredWorkflow
from workflows.runtime.types.results import (
    AddWaiter,
    DeleteWaiter,
    RetryAttempt,
    StepWorkerResult,
    StepWorkerState,
    StepWorkerStateContextVar,
)
from workflows.runtime.types.step_function import StepWorkerFunction
from workflows.runtime.types.ticks import TickAddEvent, TickStepResult, WorkflowTick
from workflows.runtime.verbose import VerboseDecorator

from ..errors import ConfigError, InputRequired, SessionError, StepError, SuspendRun
from ..execution.agents.turn import Turn
from ..features.steps.journal import RunJournal
from ..integrations.llama_index_workflows import switch_runtime
from ..lifecycle.json_values import json_bytes
from .conversation import OpenActivities
from .llamaindex_calls import ModelCalls, observing_model_calls
from .turn_records import TurnRecords
from .usage import Counts, Usage

logger = logging.getLogger(__name__)

KIND = "workflow"
"""Kind of the journal's entries."""

BASE, STATE, TICK, PROGRESS = "base", "state", "tick", "progress"
"""First parts of the keys of the entries: the context in which the turn began, a value of the state, a tick, and the
`WorkflowProgress`."""

MEMORY = "memory"
"""Key of an agent's chat memory in the state."""

EVENT_TYPE: TypeAdapter[type[Event]] = TypeAdapter(SerializableEventType)


@dataclass
class WorkflowProgress:
    """Progress of a turn, saved together with the ticks of the turn.

    Attributes:
        answer_count: Number of the client's answers that the workflow has received.
        questions: Open questions by the ids of their waiters, or of the steps that returned them.
        usage: Tokens of the turn's model calls by model.
        finish_reason: Finish reason of the last model call, as the provider reports it.
        is_done: True if the workflow has returned its output.
        output: Output of the workflow, as a JSON value.
    """

    answer_count: int = 0
    questions: dict[str, dict[str, Any]] = field(default_factory=dict)
    usage: dict[str, Counts] = field(default_factory=dict)
    finish_reason: str = ""
    is_done: bool = False
    output: Any = None


class MemorySerializer(BaseSerializer):
    """Serializer that stores the messages of a `ChatMemoryBuffer`, and passes other values to the wrapped serializer.

    llama-index-core 0.14 cannot serialize `ChatMemoryBuffer` with pydantic 2.14.
    """

    PREFIX = '{"a2a_celery_chat_memory": '

    def __init__(self, other: BaseSerializer) -> None:
        self._other = other

    @contextmanager
    def validation_context(self) -> Iterator[None]:
        """Resolve classes with the wrapped serializer inside the ``with`` block."""
        with self._other.validation_context():
            yield

    def serialize(self, value: Any) -> str:
        """Convert `value` to text for `deserialize`."""
        if type(value) is not ChatMemoryBuffer or type(value.chat_store) is not SimpleChatStore:
            return self._other.serialize(value)
        messages = [message.model_dump(mode="json") for message in value.get_all()]
        memory = {"token_limit": value.token_limit, "chat_store_key": value.chat_store_key, "messages": messages}
        return f"{self.PREFIX}{json.dumps(memory)}}}"

    def deserialize(self, value: str) -> Any:
        """Return the value that `serialize` has converted to text."""
        if not value.startswith(self.PREFIX):
            return self._other.deserialize(value)
        [memory] = json.loads(value).values()
        key = memory["chat_store_key"]
        messages = [ChatMessage.model_validate(message) for message in memory["messages"]]
        store = SimpleChatStore(store={key: messages})
        return ChatMemoryBuffer(token_limit=memory["token_limit"], chat_store_key=key, chat_store=store)


class RunRecorder:
    """Recorder of one workflow run. The run continues where the earlier runs of the turn ended.

    Args:
        journal: Journal of the run, or None to store nothing.
        turn: Turn of the run.
        workflow: Workflow whose runs report to this recorder; see `record_runs`.
        state: State of the workflow after the last completed turn of the context, or None.
        publish: Function that receives each event of the workflow's stream with the name of its step.
        end_step: Function that receives the name of a step at the end of each execution.
        output_of: Function that returns the output of the workflow as a JSON value.

    Raises:
        SessionError: The records are encrypted, and the current `secret_key` is missing or cannot decrypt them.
        StepsChanged: The records do not fit the workflow.
    """

    def __init__(
        self,
        journal: RunJournal | None,
        turn: Turn,
        workflow: Workflow,
        state: dict[str, Any] | None,
        *,
        publish: Callable[[Event, str], None],
        end_step: Callable[[str], None],
        output_of: Callable[[StopEvent], Any],
    ) -> None:
        self.progress = WorkflowProgress()
        self._turn = turn
        self._workflow = workflow
        self._publish, self._end_step, self._output_of = publish, end_step, output_of
        self._serializer = MemorySerializer(workflow.runtime.get_serializer(workflow))
        self._activities = OpenActivities()
        self._journal = journal
        self._records = TurnRecords(journal, KIND, "json", turn.context_id)
        self._is_recording = journal is not None
        self._is_closed = False
        self._store: StateStore[Any] | None = None
        self._last_question: InputRequiredEvent | None = None
        self._response_types: dict[str, type[Event]] = {}
        self._requirements: dict[str, dict[str, Any]] = {}
        self._undelivered: list[Event] = []
        if journal is not None:
            journal.scope = _current_scope
        self._written = self._records.read()
        self._unwritten: dict[str, bytes | None] = {}
        self.continues_turn = bool(self._written)
        snapshot = self._restore() if self.continues_turn else self._fresh(state)
        self._state: dict[str, Any] = snapshot["state"]
        self._sequence: int = snapshot["journal_seq"]
        self._waits = self.continues_turn and _is_waiting(snapshot)
        self._context = Context.from_dict(workflow, snapshot, serializer=self._serializer)
        self._calls = ModelCalls(self._activities, Usage(self.progress.usage), self._set_finish_reason, _current_step)

    @contextmanager
    def running(self, start_event: StartEvent | None) -> Iterator[WorkflowHandler]:
        """Start or continue the workflow, and record its steps inside the ``with`` block."""
        run_id = uuid4().hex
        _RECORDERS[run_id] = self
        try:
            with observing_model_calls(self._calls):
                handler = self._workflow.run(ctx=self._context, start_event=start_event, run_id=run_id)
                if self._waits:
                    self._publish(WorkflowIdleEvent(), "")
                yield handler
        finally:
            del _RECORDERS[run_id]

    async def stop(self, handler: WorkflowHandler) -> None:
        """Stop the workflow without recording the stop."""
        self._is_closed = True
        if not handler.is_done():
            await handler.cancel_run()

    def state(self) -> dict[str, Any]:
        """Return the workflow's state as a JSON object.

        Raises:
            SessionError: The state cannot be stored.
        """
        if self._store is None:
            return self._state
        try:
            state = self._store.to_dict(self._serializer)
        except ValueError as problem:
            raise SessionError(f"the state of the workflow cannot be stored: {problem}") from problem
        is_agent = isinstance(self._workflow, BaseWorkflowAgent | AgentWorkflow)
        if is_agent and MEMORY not in state["state_data"]["_data"]:
            raise SessionError(
                "the memory of the agent cannot be stored: pass no memory to the agent, or a ChatMemoryBuffer"
            )
        return state

    def response_type(self, key: str) -> type[Event] | None:
        """Return the class of the event that answers a question, or None if any step may receive the answer."""
        name = self.progress.questions[key]["waits_for"]
        if key in self._response_types or not name:
            return self._response_types.get(key)
        with self._serializer.validation_context():
            return EVENT_TYPE.validate_python(name)

    def requirements(self, key: str) -> dict[str, Any]:
        """Return the field values that the answer to a question must have."""
        return self._requirements.get(key, {})

    def deliver(self, handler: WorkflowHandler, key: str, response: Event) -> None:
        """Send the answer to a question to the workflow."""
        del self.progress.questions[key]
        self._undelivered.append(response)
        handler.ctx.send_event(response)

    async def record(self, tick: WorkflowTick, store: StateStore[Any] | None) -> None:
        """Record a tick before it takes effect. Ticks are written to the journal when a step ends.

        Raises:
            CancelledError: The run is lost.
            SessionError: The state of the workflow cannot be stored.
        """
        if self._is_closed:
            return
        self._store = store
        self._observe(tick)
        if not self._is_recording:
            return
        try:
            self._unwritten[f"{TICK}/{self._sequence}"] = self._serializer.serialize(tick).encode()
            self._sequence += 1
            if isinstance(tick, TickStepResult):
                await self._write()
        except (StepError, TypeError, ValueError) as problem:
            logger.warning("a step of the workflow is not recorded, and may be repeated: %s", problem)
            self._is_recording = False

    def publish(self, event: Event) -> None:
        """Forward an event of the workflow's stream. Idle events are dropped while the workflow receives answers."""
        if isinstance(event, InputRequiredEvent):
            self._last_question = event
        if not (isinstance(event, WorkflowIdleEvent) and self._undelivered):
            self._publish(event, _current_step())

    @contextmanager
    def executing(self, state: StepWorkerState, event: Event, retry: RetryAttempt) -> Iterator[None]:
        """Observe the execution of a step inside the ``with`` block.

        Raises:
            InputRequired: Another step has asked a question with `Turn.ask`.
        """
        self._turn.stop_if_asking()
        name = _step_name(state)
        if self._journal is not None:
            self._journal.restart(_scope(state, retry))
        if isinstance(event, ToolCall):
            self._activities.tool_call(name, event.tool_name)
        try:
            yield
        finally:
            self._activities.end(name)
            self._calls.end_all(name)
            self._end_step(name)

    def _set_finish_reason(self, reason: str) -> None:
        self.progress.finish_reason = reason

    def _fresh(self, state: dict[str, Any] | None) -> dict[str, Any]:
        """Return the snapshot of a new workflow context with `state`, and queue the snapshot for the journal."""
        snapshot = Context(self._workflow, serializer=self._serializer).to_dict(include_state=False)
        self._unwritten[BASE] = _dump(snapshot)
        return {**snapshot, STATE: state or {}}

    def _restore(self) -> dict[str, Any]:
        """Rebuild the workflow context after the last recorded tick.

        If that tick is a failure that ended the workflow, the context precedes the failed step.
        """
        self.progress = WorkflowProgress(**json.loads(self._written[PROGRESS]))
        base = json.loads(self._written[BASE])
        keys = (key.partition("/") for key in self._written)
        sequence = sorted(int(number) for kind, _, number in keys if kind == TICK)
        records = [JournalRecord(seq=seq, data=self._written[f"{TICK}/{seq}"].decode()) for seq in sequence]
        while True:
            try:
                context = basic_runtime.restore(self._workflow, base, records, self._serializer)
            except Exception as problem:
                assert self._journal is not None
                text = f"the recorded steps do not fit the workflow ({problem!r})"
                raise self._journal.changed(text) from problem
            if context.is_running or self.progress.is_done or not records:
                break
            records.pop()
        snapshot = context.to_dict(include_state=False)
        for worker in snapshot["workers"].values():
            for waiter in worker["collected_waiters"]:  # the ticks do not record that a waiter has requirements
                question = self.progress.questions.get(waiter["waiter_id"], {})
                waiter["has_requirements"] = question.get("has_requirements", False)
        return {**snapshot, STATE: _joined_state(self._written)}

    async def _write(self) -> None:
        self.progress.answer_count = self._count_answers()
        entries = {**_state_entries(self.state()), PROGRESS: _dump(asdict(self.progress))}
        contents: dict[str, bytes | None] = dict(self._unwritten)
        contents |= {key: content for key, content in entries.items() if self._written.get(key) != content}
        contents |= {key: None for key in self._written if _is_state(key) and key not in entries}
        await self._records.replace(contents)
        self._unwritten.clear()
        self._written = entries

    def _count_answers(self) -> int:
        """Return the number of answers that `Turn.ask` has returned. A question that another step is asking is not
        included."""
        try:
            self._turn.stop_if_asking()
        except InputRequired:
            return self._turn.question_count - 1
        except SuspendRun:
            pass
        return self._turn.question_count

    def _observe(self, tick: WorkflowTick) -> None:
        """Update the progress of the turn after a tick."""
        if isinstance(tick, TickAddEvent):
            self._undelivered = [event for event in self._undelivered if event is not tick.event]
        if not isinstance(tick, TickStepResult):
            return
        for result in tick.result:
            match result:
                case AddWaiter():
                    self._add_waiter(result)
                case DeleteWaiter(waiter_id=key):
                    self.progress.questions.pop(key, None)
                case StepWorkerResult(result=InputRequiredEvent() as event):
                    key = f"{tick.step_id}:{tick.invocation_id}"
                    self.progress.questions[key] = {"event": _fields(event), "waits_for": ""}
                case StepWorkerResult(result=StopEvent() as event):
                    self.progress.is_done, self.progress.output = True, self._output_of(event)

    def _add_waiter(self, waiter: AddWaiter[Any]) -> None:
        key, response_type = waiter.waiter_id, waiter.event_type
        event = waiter.waiter_event or self._last_question
        if issubclass(response_type, HumanResponseEvent) or isinstance(event, InputRequiredEvent):
            self._response_types[key] = response_type
            self._requirements[key] = waiter.requirements
            name = f"{response_type.__module__}.{response_type.__qualname__}"
            self.progress.questions[key] = {
                "event": _fields(event),
                "waits_for": name,
                "has_requirements": bool(waiter.requirements),
            }


class RecordingRuntime(BaseRuntimeDecorator):
    """Runtime that reports workflow runs to their recorders. Workflows without a recorder run unchanged."""

    def register(self, workflow: Workflow) -> RegisteredWorkflow:
        """Register the workflow with steps that report to the run's recorder."""
        workflow_copy = super().register(workflow)
        return replace(workflow_copy, steps={name: _observe_step(step) for name, step in workflow_copy.steps.items()})

    def get_internal_adapter(self, workflow: Workflow) -> InternalRunAdapter:
        """Return the adapter of the current run, which reports to the run's recorder if there is one."""
        adapter = super().get_internal_adapter(workflow)
        recorder = _RECORDERS.get(adapter.run_id)
        return adapter if recorder is None else _RecordingAdapter(adapter, recorder)


class _RecordingAdapter(BaseInternalRunAdapterDecorator):
    """Adapter that records the ticks of one run and receives the events of its stream."""

    def __init__(self, adapter: InternalRunAdapter, recorder: RunRecorder) -> None:
        super().__init__(adapter)
        self._recorder = recorder

    async def on_tick(self, tick: WorkflowTick) -> None:
        await self._recorder.record(tick, self.get_state_store())
        await super().on_tick(tick)

    async def write_to_event_stream(self, event: Event) -> None:
        self._recorder.publish(event)


_RECORDERS: dict[str, RunRecorder] = {}
"""Recorders by the ids of their runs."""


def record_runs(workflow: Workflow) -> None:
    """Make the runs of a workflow recordable.

    Raises:
        ConfigError: The workflow has a different runtime, has already run, or has events that no other process can
            load.
    """
    runtime = workflow.runtime
    if isinstance(runtime, RecordingRuntime):
        return
    if not isinstance(runtime, BasicRuntime | VerboseDecorator):
        raise ConfigError(
            f"the workflow has the runtime {type(runtime).__name__}: create it without a runtime, because its steps "
            "are recorded with the task"
        )
    for event in workflow.events:
        if getattr(sys.modules.get(event.__module__), event.__name__, None) is not event:
            raise ConfigError(
                f"the event {event.__qualname__} is not at the top level of a module: move it there, so that other "
                "workers can load it"
            )
    try:
        switch_runtime(workflow, RecordingRuntime(runtime))
    except RuntimeError as problem:
        raise ConfigError(
            "the workflow has already run in this process: pass a workflow that has not run, so that its steps can be "
            "recorded"
        ) from problem


def _observe_step(step: StepWorkerFunction) -> StepWorkerFunction:
    async def run_step(**arguments: Any) -> Any:
        recorder = _RECORDERS.get(get_current_run_id() or "")
        if recorder is None:
            return await step(**arguments)
        with recorder.executing(arguments["state"], arguments["event"], arguments["retry"]):
            results = await step(**arguments)
        for result in results:
            if isinstance(result, StepWorkerResult) and isinstance(result.result, ToolCallResult):
                _make_serializable(result.result.tool_output)
        return results

    return cast(StepWorkerFunction, run_step)


def _make_serializable(output: ToolOutput) -> None:
    """Replace a tool's raw output with its text if the raw output cannot be serialized as JSON."""
    try:
        output.model_dump_json()
    except ValueError:
        output.raw_output = str(output.raw_output)


def _step_name(state: StepWorkerState) -> str:
    """Return the step's name with the id of its input. The result is the same in each run of the turn."""
    return f"{state.step_name}:{state.work_item_id or state.invocation_id}"


def _scope(state: StepWorkerState, retry: RetryAttempt) -> str:
    return f"{_step_name(state)}:{retry.retry_number}"


def _current_step() -> str:
    """Return the name of the step that is being executed, or ""."""
    context = StepWorkerStateContextVar.get(None)
    return "" if context is None else _step_name(context.state)


def _current_scope() -> str:
    context = StepWorkerStateContextVar.get(None)
    return "" if context is None else _scope(context.state, context.retry)


def _fields(event: Event | None) -> dict[str, Any]:
    """Return the fields of an event as a JSON object. Values that cannot be serialized as JSON become text."""
    if event is None:
        return {}
    fields = {**{name: getattr(event, name) for name in type(event).model_fields}, **dict(event.items())}
    json_fields: dict[str, Any] = json.loads(json.dumps(fields, default=str))
    return json_fields


def _dump(data: Mapping[str, Any]) -> bytes:
    return json_bytes(data, allow_nan=True)


def _is_waiting(snapshot: Mapping[str, Any]) -> bool:
    """Return True if no step of a workflow can be executed before an answer arrives.

    After a restart, LlamaIndex does not report this condition. The result is False if a waiter has requirements,
    because LlamaIndex executes the waiter's step again.
    """
    workers = snapshot["workers"].values()
    is_busy = any(worker["queue"] or worker["in_progress"] for worker in workers) or snapshot["deliveries"]
    return not is_busy and not any(
        waiter["has_requirements"] for worker in workers for waiter in worker["collected_waiters"]
    )


def _is_state(key: str) -> bool:
    return key.partition("/")[0] == STATE


def _state_entries(state: dict[str, Any]) -> dict[str, bytes]:
    """Return the journal entries for a workflow's state. Each value of a `DictState` has an entry."""
    data = state["state_data"]
    values = data["_data"] if isinstance(data, dict) else {}
    rest = {**state, "state_data": {**data, "_data": {}}} if isinstance(data, dict) else state
    return {STATE: _dump(rest), **{f"{STATE}/{key}": str(value).encode() for key, value in values.items()}}


def _joined_state(entries: Mapping[str, bytes]) -> dict[str, Any]:
    """Rebuild the workflow's state from its journal entries."""
    state: dict[str, Any] = json.loads(entries[STATE])
    for key, content in entries.items():
        if _is_state(key) and key != STATE:
            state["state_data"]["_data"][key.removeprefix(f"{STATE}/")] = content.decode()
    return state
