"""Push notification configs in a gateway. A config is validated when it is created, stored encrypted, and returned
without its secrets."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from a2a.types import (
    ListTaskPushNotificationConfigsRequest,
    ListTaskPushNotificationConfigsResponse,
    SendMessageRequest,
    TaskPushNotificationConfig,
)
from a2a.utils.errors import TaskNotFoundError, UnsupportedOperationError

from ...crypto.sealing import Sealer, sealer_of
from ...gateway.call import Call
from ...gateway.gate import Gate
from ...gateway.operations.task_reader import TaskReader
from ...gateway.protocol_errors import PUSH_EVENTS
from ...lifecycle import EventId
from ...lifecycle.client_events import client_event
from ...lifecycle.references import Scope
from ...lifecycle.refusals import Reason
from ...operations.errors import MAX_ID_LENGTH, LimitExceededError, invalid
from ...operations.service import TaskService
from ...push import Poster, Subscription, Target, TargetRefused, check_config, parse_event_filters
from ...settings import Settings
from ...store import AsyncStore, Keys
from ...store.log.pages import read_next_entry
from ...telemetry.logs import LineLimit
from .config_section import ConfigSection, NewPushConfig, config_section
from .deliveries import (
    MAX_REQUESTED_POSTS,
    PING,
    Attempt,
    Delivery,
    read_delivery,
    replay_delivery,
    request_post,
)
from .push_configs import (
    ESCALATION,
    delete_push_config,
    list_push_configs,
    read_push_config,
    save_push_config,
)

logger = logging.getLogger(__name__)

CONSENT_TIMEOUT = 5.0
"""Seconds within which a receiver must consent."""

PAGE_TOKEN = "after:"
"""Start of a page token. The rest is the id of the last config on the previous page."""

QUEUE_FULL_WAIT = 5
"""Seconds after which the client of a rejected replay or ping may retry."""


class PushConfigs:
    """Push notification configs of all agents of a gateway."""

    def __init__(
        self,
        settings: Settings,
        sealer: Sealer,
        store: AsyncStore,
        keys: Keys,
        task_reader: TaskReader,
        gate: Gate,
    ) -> None:
        self._allow = settings.push_networks
        self._sealer = sealer
        self._store = store
        self._keys = keys
        self._task_reader = task_reader
        self._gate = gate
        self._max_webhooks = settings.owner_max_webhooks
        self._origin = (urlsplit(settings.public_url or "").hostname or "") if settings.webhook_consent else ""
        self._poster = Poster(self._allow, timeout=CONSENT_TIMEOUT) if self._origin else None
        self._line_limit = LineLimit()

    @classmethod
    def of(cls, service: TaskService, task_reader: TaskReader, gate: Gate) -> PushConfigs | None:
        """Return the push notification configs of a gateway, or None without `secret_key`."""
        sealer = sealer_of(service.settings.secret_keys)
        if sealer is None:
            return None
        return cls(service.settings, sealer, service.store, service.keys, task_reader, gate)

    async def aclose(self) -> None:
        """Close the connections that were used to ask receivers for consent."""
        if self._poster is not None:
            await self._poster.aclose()

    async def section_for_message(self, params: SendMessageRequest, call: Call, task_id: str) -> ConfigSection | None:
        """Return the section that saves the config in a message to `task_id`, or None if the message has no config.

        Raises:
            InvalidParamsError: The config is invalid.
        """
        if not params.configuration.HasField("task_push_notification_config"):
            return None
        config = params.configuration.task_push_notification_config
        field = "configuration.task_push_notification_config."
        if config.task_id not in ("", task_id):
            raise invalid(f"{field}task_id", "Leave the task id out: the config belongs to the task of this message.")
        new = self._seal_config(await self._check_config(config, call, task_id, field), call)
        return config_section(self._keys, new)

    async def create(self, scope: Scope, config: TaskPushNotificationConfig, call: Call) -> TaskPushNotificationConfig:
        """Store a config and replace any config with the same id. A config without an id gets a new id.

        Returns:
            The stored config without its secrets.

        Raises:
            InvalidParamsError: The config is invalid, or its receiver does not consent.
            TaskNotFoundError: `scope` has no such task.
            UnsupportedOperationError: The task is archived, or has the maximum number of configs.
            LimitExceededError: The owner has the maximum number of configs.
        """
        subscription = await self._check_config(config, call, config.task_id, "")
        new = self._seal_config(subscription, call)
        refusal = await self._store.run(save_push_config(self._keys, scope, config.task_id, new))
        if refusal is not None:
            raise await self._task_reader.error_of(refusal, scope, self._gate, archived=Reason.NO_MORE_EVENTS)
        return subscription.without_secrets()

    async def get(self, scope: Scope, task_id: str, config_id: str) -> TaskPushNotificationConfig:
        _require_visible(task_id, config_id)
        sealed_config = await self._store.run(read_push_config(self._keys, scope, task_id, config_id))
        if sealed_config is None:
            raise _no_config(task_id, config_id)
        return self._open_config(task_id, config_id, sealed_config)

    async def list(
        self, scope: Scope, params: ListTaskPushNotificationConfigsRequest
    ) -> ListTaskPushNotificationConfigsResponse:
        """Return a page of the configs of a task, ordered by id. Without a page size, the page has all remaining
        configs."""
        if params.page_size < 0:
            raise invalid("page_size", "Send a number of configs, or leave it out.")
        last_id = params.page_token.removeprefix(PAGE_TOKEN)
        if params.page_token and (last_id == params.page_token or not last_id):
            raise invalid("page_token", "Send nextPageToken of the previous page unchanged, or leave it out.")
        pairs = await self._store.run(list_push_configs(self._keys, scope, params.task_id))
        if pairs is None:  # an archived task has no configs
            await self._task_reader.read(scope, params.task_id, history_length=0, artifacts=False)
        pairs_after_token = [pair for pair in pairs or () if pair[0] > last_id and pair[0] != ESCALATION]
        page = pairs_after_token[: params.page_size or None]
        return ListTaskPushNotificationConfigsResponse(
            configs=[self._open_config(params.task_id, config_id, sealed_config) for config_id, sealed_config in page],
            next_page_token=PAGE_TOKEN + page[-1][0] if len(page) < len(pairs_after_token) else "",
        )

    async def delete(self, scope: Scope, task_id: str, config_id: str) -> None:
        """Delete a config if it exists.

        Raises:
            TaskNotFoundError: `scope` has no such task.
        """
        _require_visible(task_id, config_id)
        if not await self._store.run(delete_push_config(self._keys, scope, task_id, config_id)):
            await self._task_reader.read(scope, task_id, history_length=0, artifacts=False)

    async def deliveries(self, scope: Scope, task_id: str, config_id: str) -> dict[str, Any]:
        """Return the newest and the pending deliveries of a config."""
        _require_visible(task_id, config_id)
        delivery = await self._store.run(read_delivery(self._keys, task_id, config_id, scope))
        if delivery is None:
            raise _no_config(task_id, config_id)
        return _deliveries_json(delivery)

    async def replay(self, scope: Scope, task_id: str, config_id: str, event: str) -> dict[str, Any]:
        """Queue another delivery of the event with the id `event`, or of all failed events if `event` is "".

        Returns:
            The deliveries of the config.

        Raises:
            TaskNotFoundError: There is no such config.
            InvalidParamsError: `event` is not an event id.
            UnsupportedOperationError: The log does not contain the event, or the config does not subscribe to it.
            LimitExceededError: Too many replays and pings of the config are queued.
        """
        _require_visible(task_id, config_id)
        if event:
            await self._request(scope, task_id, config_id, await self._event_id(scope, task_id, config_id, event))
        else:
            await self._store.run(replay_delivery(self._keys, task_id, config_id, scope))
        return await self.deliveries(scope, task_id, config_id)

    async def ping(self, scope: Scope, task_id: str, config_id: str) -> dict[str, Any]:
        """Queue a test ping, which a watcher posts.

        Returns:
            The id of the ping, and the deliveries of the config.

        Raises:
            TaskNotFoundError: There is no such config.
            LimitExceededError: Too many replays and pings of the config are queued.
        """
        _require_visible(task_id, config_id)
        ping = f"{PING}{uuid4().hex}"
        await self._request(scope, task_id, config_id, ping)
        return {"ping": ping, **await self.deliveries(scope, task_id, config_id)}

    async def _request(self, scope: Scope, task_id: str, config_id: str, post: EventId | str) -> None:
        match await self._store.run(request_post(self._keys, scope, task_id, config_id, post)):
            case "missing":
                raise _no_config(task_id, config_id)
            case "gone":
                raise _no_event(task_id, str(post))
            case "full":
                text = (
                    f"{MAX_REQUESTED_POSTS} replays and pings of this webhook are queued: retry in {QUEUE_FULL_WAIT} s"
                )
                raise LimitExceededError(text, data={"limit": "webhook_posts", "retryAfter": str(QUEUE_FULL_WAIT)})

    async def _event_id(self, scope: Scope, task_id: str, config_id: str, text: str) -> EventId:
        """Return the complete id of an event. `text` is the id, or only the version.

        Raises:
            A2AError: The config or the event does not exist, or the config does not subscribe to the event.
        """
        try:
            event_id = EventId.parse(text)
        except ValueError:
            raise invalid("event", "Send the id of an event, such as 7-1767225600000000.") from None
        sealed_config = await self._store.run(read_push_config(self._keys, scope, task_id, config_id))
        if sealed_config is None:
            raise _no_config(task_id, config_id)
        subscription = Subscription.from_bytes(self._sealer.open(sealed_config, task_id, config_id))
        after = EventId(max(event_id.version - 1, 0))
        entry = await self._store.run(read_next_entry(self._keys, task_id, after, resolve_blobs=False))
        if entry is None or entry.id.differs_from(event_id):
            raise _no_event(task_id, text)
        event = client_event(entry, task_id, "")
        if event is None or not subscription.includes(event):
            data = {"taskId": task_id, "event": text}
            raise UnsupportedOperationError(f"Event {text} is not delivered to this webhook", data=data)
        return entry.id

    async def _check_config(
        self, requested_config: TaskPushNotificationConfig, call: Call, task_id: str, field: str
    ) -> Subscription:
        """Return the subscription for a valid config.

        The validation does not resolve the host, because its result would reveal names in the gateway's network. Each
        delivery and each request for consent checks the addresses to which the host resolves.

        Raises:
            InvalidParamsError: The config is invalid, or its receiver does not consent. The names of invalid fields
                begin with `field`.
        """
        if len(requested_config.id) > MAX_ID_LENGTH or not requested_config.id.isprintable():
            raise invalid(f"{field}id", f"Send at most {MAX_ID_LENGTH} printable characters.")
        if requested_config.id == ESCALATION:
            raise invalid(f"{field}id", f"Send another id: {ESCALATION} is reserved.")
        try:
            events = parse_event_filters(call.headers.get(PUSH_EVENTS, ""))
        except ValueError as e:
            raise invalid("A2A-Push-Events", f"{e}.") from None
        config = TaskPushNotificationConfig()
        config.CopyFrom(requested_config)
        config.id = requested_config.id or str(uuid4())
        config.task_id = task_id
        config.ClearField("tenant")  # the scope of the task contains the tenant
        try:
            target = check_config(config, self._allow)
            await self._require_consent(target, call)
        except TargetRefused as e:
            self._log_private_host(e.private_host, call)
            raise invalid(f"{field}{e.field}", f"{e.rule}.") from None
        return Subscription(config, call.protocol, events)

    def _log_private_host(self, host: str, call: Call) -> None:
        """Log the setting that would allow a webhook's private `host`, unless `host` is ""."""
        omitted = self._line_limit.admit() if host else None
        if omitted is not None:
            logger.info(
                "a webhook of %s was refused: %s is not a public address. To allow it, add its network to "
                "a2a_allow_networks.%s",
                call.user.user_name or "a caller without credentials",
                host,
                f" {omitted} more refused since the last line." if omitted else "",
            )

    async def _require_consent(self, target: Target, call: Call) -> None:
        """Ask the receiver of a config for consent, if the deployment requires consent.

        Raises:
            TargetRefused: The receiver does not consent or does not respond. The error is the same in both cases, so
                that clients cannot scan the network.
        """
        if self._poster is None:
            return
        if not await self._poster.has_consent(target.url, self._origin, owner=call.scope.account):
            exchange = f"OPTIONS with WebHook-Request-Origin: {self._origin} by WebHook-Allowed-Origin: {self._origin}"
            raise TargetRefused("url", f"its receiver must consent: it must answer {exchange} within a few seconds")

    def _seal_config(self, subscription: Subscription, call: Call) -> NewPushConfig:
        config = subscription.config
        sealed_config = self._sealer.seal(subscription.to_bytes(), config.task_id, config.id)
        return NewPushConfig(config.id, sealed_config, self._sealer.fingerprint, call.scope.account, self._max_webhooks)

    def _open_config(self, task_id: str, config_id: str, sealed_config: bytes) -> TaskPushNotificationConfig:
        return Subscription.from_bytes(self._sealer.open(sealed_config, task_id, config_id)).without_secrets()


def _require_visible(task_id: str, config_id: str) -> None:
    """Raise TaskNotFoundError for a config that an agent has set, because clients must not see its URL."""
    if config_id == ESCALATION:
        raise _no_config(task_id, config_id)


def _no_config(task_id: str, config_id: str) -> TaskNotFoundError:
    return TaskNotFoundError("No such push notification config", data={"taskId": task_id, "id": config_id})


def _no_event(task_id: str, event: str) -> UnsupportedOperationError:
    text = f"Event {event} cannot be delivered again: the task's log does not contain the event"
    return UnsupportedOperationError(text, data={"taskId": task_id, "event": event})


def _deliveries_json(delivery: Delivery) -> dict[str, Any]:
    """Return the deliveries of a config in the format for the config's owner, newest first. Times of 0 are omitted."""
    waits = delivery.state in ("failing", "waiting")
    times = {"nextTry": delivery.due_us if waits and not delivery.is_leased else 0, "givenUpAt": delivery.died_us}
    return {
        "taskId": delivery.task_id,
        "id": delivery.config_id,
        "state": delivery.state,
        "delivered": delivery.delivered,
        "lastEvent": delivery.version,
        "failures": delivery.failures,
        **_times(times),
        "requested": list(delivery.requested),
        "deliveries": [_attempt_json(attempt) for attempt in delivery.attempts],
    }


def _attempt_json(attempt: Attempt) -> dict[str, Any]:
    kind = "ping" if attempt.post.startswith(PING) else "event"
    optional = {"status": attempt.status, "latencyMs": attempt.latency_ms, "reason": attempt.reason or None}
    return {
        **_times({"time": attempt.at_us}),
        **({kind: attempt.post} if attempt.post else {}),
        "outcome": attempt.outcome,
        **{name: value for name, value in optional.items() if value is not None},
        **_times({"nextTry": attempt.next_us}),
    }


def _times(times: dict[str, int]) -> dict[str, str]:
    return {
        name: datetime.fromtimestamp(at_us / 1_000_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        for name, at_us in times.items()
        if at_us
    }
