"""Requests that create or continue tasks: their validation, with the specification's errors, and the store operation,
run options and Celery message of each.

The SDK's check of required fields is used only to find the missing fields of an incomplete request. This check is slow,
because it reads the .proto's options again for every message of every request and descends into structured data.

Source: A2A specification 3.3.4 (capabilities), 3.4 (identifiers), 5.7 (required fields, ``google.api.field_behavior``).
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from math import isfinite
from typing import Any, Generic, TypeVar
from uuid import uuid4

from a2a.types import AgentCard, Message, Role, SendMessageRequest, Task
from a2a.utils.errors import ContentTypeNotSupportedError, ExtensionSupportRequiredError, InvalidParamsError
from a2a.utils.proto_utils import validate_proto_required_fields
from google.api.field_behavior_pb2 import FieldBehavior, field_behavior
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message as Proto
from google.protobuf.struct_pb2 import Struct

from ..agents import Agent
from ..caller import Caller
from ..clock import SYSTEM_CLOCK
from ..dispatch import BadCall, Call, CallSignature, RunOptions, is_polled
from ..errors import ConfigError
from ..features.feature import ServiceFeature
from ..features.sections import MESSAGE_SECTIONS, TASK_ID
from ..lifecycle import is_terminal
from ..lifecycle.events import levels_of_values, values_in
from ..lifecycle.files import check_data_uri, declared_media_type
from ..lifecycle.json_values import TOO_DEEP
from ..lifecycle.own_metadata import ASKED, NAMESPACE
from ..lifecycle.questions import schema_in
from ..lifecycle.references import RunRef, Scope
from ..lifecycle.refusals import Refusal
from ..settings import Settings
from ..store import Keys, Operation
from ..store.tasks.commands import ReplyChannel, create_task
from ..store.tasks.replies import Accepted, Known
from ..store.verbs import Section
from ..telemetry.tracing import trace_to_keep
from .errors import MAX_ID_LENGTH, invalid, invalid_fields

logger = logging.getLogger(__name__)

MAX_JSON_VALUES = 20_000
"""Maximum number of JSON values in a request. Each value blocks the event loop for several microseconds, mostly in
protobuf's parser."""

MAX_REFERENCES = 16
"""Maximum number of tasks that a message may refer to, because the worker reads all of them before the agent starts."""


def check_request(params: SendMessageRequest, card: AgentCard, extensions: Collection[str]) -> None:
    """Check the message of a request whose client requested `extensions`, except for rules that depend on the state of
    a task.

    Raises:
        A2AError: The request is invalid. The error describes the first problem.
    """
    require_extensions(card, extensions)
    check_message(params.message)
    check_values(params)
    check_media_types(params.message, card)


def require_extensions(card: AgentCard, uris: Collection[str]) -> None:
    """Raise ExtensionSupportRequiredError if the client did not request an extension that the card requires."""
    missing = sorted(
        extension.uri for extension in card.capabilities.extensions if extension.required and extension.uri not in uris
    )
    if missing:
        raise ExtensionSupportRequiredError(
            f"This agent requires the extension {missing[0]}: add its URI to the A2A-Extensions header",
            data={"extension": missing[0]},
        )


def check_message(message: Message) -> None:
    """Raise InvalidParamsError for a role, an id, a reference or a part that a client's message cannot have."""
    if message.role != Role.ROLE_USER:
        raise invalid("message.role", "Must be ROLE_USER in a client's message.")
    _check_ids(message)
    for number, part in enumerate(message.parts):
        if part.WhichOneof("content") is None:
            raise invalid(f"message.parts[{number}]", "Must contain one of: text, raw, url, data.")
        try:
            if part.url:
                check_data_uri(part)
        except ValueError as problem:
            text = f"Invalid data: URI: {problem}. Write a URI such as data:image/png;base64,iVBORw0KGgo="
            raise invalid(f"message.parts[{number}].url", text) from None


MODES_OF_WORDS = {"text": "text/plain", "*": "*/*"}
"""Media types and ranges that cards name by a word."""

_MEDIA_RANGE = re.compile(r"\*/\*|[\w!#$&^.+-]+/(?:\*|[\w!#$&^.+-]+)", re.ASCII)
"""Media type or media range. Source: RFC 6838, section 4.2; RFC 9110, section 12.5.1."""


def check_media_types(message: Message, card: AgentCard) -> None:
    """Raise ContentTypeNotSupportedError for a part with a media type that neither the card nor one of its skills
    declares. A card without input modes accepts all media types.

    A mode may be a media range, such as ``image/*``. Case and parameters, such as ``charset``, are ignored (RFC 9110,
    section 8.3.1).
    """
    files = [part for part in message.parts if part.media_type or part.url]
    media_types = [media_type for part in files if (media_type := declared_media_type(part))]
    if not media_types:
        return
    input_modes = _input_modes(card)
    accepted = set(map(_range_of, input_modes))
    refused = next((name for name in media_types if accepted.isdisjoint(_ranges_of(name))), None)
    if accepted and refused is not None:
        raise ContentTypeNotSupportedError(
            f"Media type {refused[:MAX_ID_LENGTH]} is not supported. "
            f"Supported input modes: {', '.join(sorted(input_modes))}"
        )


def check_input_modes(name: str, card: AgentCard) -> None:
    """Check the input modes of the card of the agent `name`. Log a warning for a word with a usual meaning.

    Raises:
        ConfigError: An input mode is neither a media type, a media range, nor such a word. No part would match it.
    """
    for mode in sorted(_input_modes(card)):
        media_range = _range_of(mode)
        if not _MEDIA_RANGE.fullmatch(media_range):
            raise ConfigError(
                f"agent {name!r}: input mode {mode!r} of its card is not a media type: write a media type or a range, "
                "such as text/plain, image/* or */*"
            )
        if mode.strip().lower() in MODES_OF_WORDS:
            logger.warning(
                "agent %r: the input mode %r of its card means %s: write %s, which clients understand",
                name,
                mode,
                media_range,
                media_range,
            )


def _input_modes(card: AgentCard) -> set[str]:
    return {*card.default_input_modes, *(mode for skill in card.skills for mode in skill.input_modes)}


def _ranges_of(media_type: str) -> tuple[str, ...]:
    """Return the media ranges that contain `media_type`."""
    exact = _range_of(media_type)
    return exact, f"{exact.partition('/')[0]}/*", "*/*"


def _range_of(media_type: str) -> str:
    exact = media_type.partition(";")[0].strip().lower()
    return MODES_OF_WORDS.get(exact, exact)


def _check_ids(message: Message) -> None:
    for field in ("message_id", "context_id", "task_id"):
        if len(getattr(message, field)) > MAX_ID_LENGTH:
            raise invalid(f"message.{field}", f"At most {MAX_ID_LENGTH} characters.")
    if len(message.reference_task_ids) > MAX_REFERENCES:
        raise invalid("message.reference_task_ids", f"At most {MAX_REFERENCES} tasks.")
    if any(len(task_id) > MAX_ID_LENGTH for task_id in message.reference_task_ids):
        raise invalid("message.reference_task_ids", f"At most {MAX_ID_LENGTH} characters each.")


def check_values(params: SendMessageRequest) -> None:
    """Check the structured values of a request.

    Raises:
        InvalidParamsError: The request has too many values, a number that JSON cannot represent, or a value that is
            nested too deeply; see `MAX_VALUE_DEPTH`. The stored task could not be read.
    """
    message = params.message
    count = sum(map(len, (message.parts, message.extensions, params.configuration.accepted_output_modes)))
    for level, is_too_deep in levels_of_values(values_in(message.parts, params.metadata, message.metadata)):
        if is_too_deep:
            raise invalid("message", f"Data or metadata is {TOO_DEEP}.")
        count += len(level)
        if count > MAX_JSON_VALUES:
            break
        if not all(isfinite(value.number_value) for value in level):
            raise invalid("message", "Numbers must be finite: JSON has neither NaN nor infinity.")
    if count > MAX_JSON_VALUES:
        raise invalid("message.parts", f"At most {MAX_JSON_VALUES} values: send large data as a file part.")


WHAT_TO_SEND = {
    "message.role": 'Send ROLE_USER: A2A 1.0 has no role "user".',
    "message.message_id": "Send a new id of your choice, such as a UUID.",
    "message.parts": 'Send at least one part, such as {"text": "hello"}.',
}
"""Error texts for required fields. The SDK's text only states that a field is required."""


def require_fields(params: Proto) -> None:
    """Raise InvalidParamsError with the names of all required fields that are missing or empty."""
    if _complete(params):
        return
    try:
        validate_proto_required_fields(params)
    except InvalidParamsError as e:
        errors = (e.data or {}).get("errors", [])
        raise invalid_fields(
            [error | {"message": WHAT_TO_SEND.get(error["field"], error["message"])} for error in errors]
        ) from None


def _complete(message: Proto) -> bool:
    required_names, below = _required_fields(message.DESCRIPTOR)
    values = {field.name: value for field, value in message.ListFields()}
    return required_names <= values.keys() and all(
        _complete(inner) for name in below if name in values for inner in _messages(values[name])
    )


def _messages(value: Any) -> Iterable[Any]:
    if isinstance(value, Proto):
        return (value,)
    return value.values() if isinstance(value, Mapping) else value


@cache
def _required_fields(kind: Any) -> tuple[frozenset[str], tuple[str, ...]]:
    """Return the required fields of a message type, and the fields whose message types have required fields."""
    required_names = frozenset(field.name for field in kind.fields if _is_required(field))
    return required_names, tuple(
        field.name for field in kind.fields if field.message_type is not None and _requires(field.message_type, ())
    )


def _requires(kind: Any, above: tuple[Any, ...]) -> bool:
    """Return True if a message type, or a type inside it, has required fields. The recursion ends at the enclosing
    types `above`."""
    return any(
        _is_required(field)
        or (
            field.message_type is not None
            and field.message_type not in above
            and _requires(field.message_type, (*above, kind))
        )
        for field in kind.fields
    )


def _is_required(field: Any) -> bool:
    return FieldBehavior.REQUIRED in field.GetOptions().Extensions[field_behavior]


SCHEDULE = "celery_schedule"
"""Key of the message's schedule in the request's metadata."""

TIMES = ("not_before", "not_after")

END_OF_TIMES = 9000
"""Year from which times are refused. Watchers and workers add durations to the times, and convert them to local time,
and Python's times end with the year 9999."""

LARGE_REQUEST = 1 << 16
"""Size in bytes above which a request is encoded in a thread."""

R = TypeVar("R")
T = TypeVar("T")


def run_options(agent: Agent, request: SendMessageRequest, caller: Caller, call: Call | None = None) -> RunOptions:
    """Return the options with which to publish the run for `request`.

    Args:
        agent: Agent that receives the request.
        request: Request with the ids of its task and context.
        caller: Caller of the request.
        call: Call to the agent's plain Celery task, or None for any other kind of agent.

    Raises:
        InvalidParamsError: The client's schedule is invalid, or the agent does not allow schedules.
        Exception: The agent's route has raised this exception. Invalid options from the route cause a TypeError or
            ValueError.
    """
    now = SYSTEM_CLOCK.now()
    times = _times(agent, request, now)
    route: Any = {}
    if agent.route is not None:
        request_copy = SendMessageRequest()
        request_copy.CopyFrom(request)  # a route may change its argument, so it gets a copy
        route = agent.route(request_copy, caller)
    trace = trace_to_keep(caller.headers)
    return RunOptions.of(route, times.get("not_before"), times.get("not_after"), now, call, trace)


def _times(agent: Agent, request: SendMessageRequest, now: datetime) -> dict[str, datetime]:
    field = f"metadata.{SCHEDULE}"
    if SCHEDULE not in request.metadata.fields:
        return {}
    if not agent.scheduling:
        raise invalid(field, "This agent does not let clients schedule messages.")
    schedule = MessageToDict(request.metadata)[SCHEDULE]
    if not isinstance(schedule, dict) or not schedule or set(schedule) - set(TIMES):
        raise invalid(field, f"An object with {' or '.join(TIMES)}, or both.")
    times = {name: _time(f"{field}.{name}", value) for name, value in schedule.items()}
    earliest = times.get("not_before", datetime.min.replace(tzinfo=UTC))
    # the times of a repeated message may be in the past by now
    if not agent.recognizes_repeats:
        earliest = max(now, earliest)
    if times.get("not_after", datetime.max.replace(tzinfo=UTC)) <= earliest:
        raise invalid(f"{field}.not_after", "A time in the future, and after not_before.")
    return times


def _time(field: str, value: Any) -> datetime:
    try:
        time = datetime.fromisoformat(value)
        if time.tzinfo is not None and time.year < END_OF_TIMES:
            return time.astimezone(UTC)
    except (TypeError, ValueError, OverflowError):
        pass
    text = f"An ISO 8601 time before the year {END_OF_TIMES} with an offset from UTC, such as 2030-01-01T08:00:00Z."
    raise invalid(field, text)


@dataclass(frozen=True, slots=True)
class NewTask(Generic[R]):
    """Task to create.

    Attributes:
        create: Function that returns the operation that creates the task; see `built`.
        options: Options of the task's first run.
        run_sections: Sections of the run, by the feature that has made them.
    """

    create: Callable[[], Operation[Accepted | Known | R | Refusal]]
    options: RunOptions
    run_sections: Mapping[ServiceFeature, Section[Any]]


async def built(request: SendMessageRequest, operation: Callable[[], Operation[T]]) -> Operation[T]:
    """Return the store operation that the function `operation` builds.

    The function encodes `request`. A large request is encoded in a thread, so that the event loop can serve other
    requests.
    """
    return operation() if request.ByteSize() <= LARGE_REQUEST else await asyncio.to_thread(operation)


class NewTasks:
    """Factory of the new tasks of one agent.

    Raises:
        ConfigError: An option of the agent does not fit the settings.
    """

    def __init__(self, agent: Agent, settings: Settings, keys: Keys) -> None:
        for feature in agent.features:
            feature.check_settings(agent.name, settings)
        self._agent = agent
        self._settings = settings
        self._keys = keys
        self._signature = CallSignature.of(agent.code) if agent.kind == "task" else None

    @property
    def is_call(self) -> bool:
        """True if the agent is a plain Celery task, which is called with all of the client's messages."""
        return self._signature is not None

    def of(
        self,
        params: SendMessageRequest,
        caller: Caller,
        task_id: str,
        sections_for_run: Callable[[RunRef, RunOptions], Mapping[ServiceFeature, Section[Any]]],
        *,
        is_nearly_full: bool,
        reply_channel: ReplyChannel | None,
        metadata: Struct | None,
        sections: Sequence[Section[R]],
    ) -> NewTask[R]:
        """Return the new task for a message without a task id.

        Raises:
            InvalidParamsError: The message is not a valid call to the agent's Celery task, or its schedule is invalid
                or not allowed.
            Exception: The agent's route has raised this exception.
        """
        scope = caller.scope(self._agent.name)
        request = with_ids(params, caller.tenant, task_id, params.message.context_id or str(uuid4()))
        options = run_options(self._agent, request, caller, self.call_of([request.message]))
        run_sections = sections_for_run(RunRef(task_id, 1), options)
        create = partial(
            create_task,
            self._keys,
            scope,
            task_id,
            request.message.context_id,
            request,
            caller=caller.to_json(),
            retention=self._settings.retention,
            options=options.to_json(),
            metadata=metadata,
            sections=[
                *sections,
                *sections_for_message(self._agent, self._keys, scope, params, sections),
                *run_sections.values(),
            ],
            serialize_context=self._agent.serialize_context,
            is_nearly_full=is_nearly_full,
            reply_channel=reply_channel,
        )
        return NewTask(create, options, run_sections)

    def next_call(self, task: Task, message: Message) -> Call | None:
        """Return the call to the agent's plain Celery task with the messages of `task` and the new message, or None for
        a terminal task or any other kind of agent.

        If the message may repeat an accepted message, a copy of it in `task` is used instead of the message. The call
        for a repeated message is therefore as valid as the call for its first copy.

        Raises:
            InvalidParamsError: The messages are not a valid call.
        """
        if is_terminal(task.status.state):
            return None
        is_repeat = self._agent.recognizes_repeats and any(
            earlier.message_id == message.message_id and earlier.parts == message.parts for earlier in task.history
        )
        return self.call_of(messages_with_arguments(task, None if is_repeat else message))

    def call_of(self, messages: list[Message]) -> Call | None:
        """Return the call to the agent's plain Celery task with `messages`, or None for any other kind of agent.

        Raises:
            InvalidParamsError: The messages are not a valid call.
        """
        if self._signature is None:
            return None
        try:
            task = self._agent.code
            return Call(task.name, self._signature.call(messages), is_polled(task.app))
        except BadCall as e:
            raise invalid("message.parts", str(e)) from None


def with_ids(params: SendMessageRequest, tenant: str, task_id: str, context_id: str) -> SendMessageRequest:
    """Return the request in the form in which it is stored and passed to the agent's route.

    The result contains the validated tenant, and its message contains the task id and the context id. The push
    notification config is removed, because it may contain secrets.
    """
    request = SendMessageRequest()
    request.CopyFrom(params)
    request.tenant = tenant
    request.configuration.ClearField("task_push_notification_config")
    request.message.task_id = task_id
    request.message.context_id = context_id
    return request


def sections_for_message(
    agent: Agent, keys: Keys, scope: Scope, request: SendMessageRequest, caller_sections: Sequence[Section[Any]] = ()
) -> list[Section[Any]]:
    """Return the sections of features for the client's unchanged request: first those of the agent's features, then
    those that the message turns on. A section of a class that `caller_sections` contains is omitted."""
    message, classes = request.message, {type(section) for section in caller_sections}
    reasons = (TASK_ID,) if message.task_id else message.metadata
    sections = (
        *(feature.section_for_message(keys, scope, request) for feature in agent.features),
        *(section_of(message) for reason, section_of in MESSAGE_SECTIONS.items() if reason in reasons),
    )
    return [section for section in sections if section is not None and type(section) not in classes]


def messages_with_arguments(task: Task, message: Message | None) -> list[Message]:
    """Return the client messages that may contain arguments of a plain Celery task: those of `task`, and the new
    `message` unless it is None.

    Answers to questions of `Turn.ask` are excluded, because `Turn.ask` returns them. A question that a worker of an
    earlier release asked is recognized only if it has a schema.
    """
    messages, is_answer = [], False
    question = [task.status.message] if task.status.HasField("message") else []
    for candidate in [*task.history, *question, *([] if message is None else [message])]:
        if candidate.role == Role.ROLE_AGENT:
            is_answer = NAMESPACE + ASKED in candidate.metadata or schema_in(candidate.parts) is not None
        elif not is_answer:
            messages.append(candidate)
        else:
            is_answer = False
    return messages
