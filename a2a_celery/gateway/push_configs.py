"""Push-notification configs: judged when they are set, stored sealed, read back without their secrets."""

from __future__ import annotations

from uuid import uuid4

from a2a.server.context import ServerCallContext
from a2a.types import (
    ListTaskPushNotificationConfigsRequest,
    ListTaskPushNotificationConfigsResponse,
    SendMessageRequest,
    TaskPushNotificationConfig,
)
from a2a.utils.errors import TaskNotFoundError, UnsupportedOperationError

from ..config import Settings
from ..push import Subscription, SystemResolver, TargetRefused, check_config, check_target_now, wanted_of
from ..sealing import Sealer
from ..store import AsyncStore, Keys, Scope, answers
from ..store.push_configs import (
    MAX_PUSH_CONFIGS,
    NewPushConfig,
    delete_push_config,
    list_push_configs,
    read_push_config,
    save_push_config,
)
from .faults import MAX_ID_LENGTH, invalid
from .kept import KeptTasks
from .legacy import PROTOCOL

EVENTS = "a2a-push-events"
"""The service parameter (a header, or gRPC metadata) that says which events a config is for; none: all of them."""


class PushConfigs:
    """Those of all agents of a deployment."""

    def __init__(self, settings: Settings, sealer: Sealer, store: AsyncStore, keys: Keys, kept: KeptTasks) -> None:
        self._allow = settings.push_networks
        self._sealer = sealer
        self._store = store
        self._keys = keys
        self._kept = kept
        self._resolver = SystemResolver()

    async def aclose(self) -> None:
        """Ends what looks names up."""
        await self._resolver.aclose()

    async def inline(
        self, params: SendMessageRequest, context: ServerCallContext, task_id: str
    ) -> NewPushConfig | None:
        """The config that comes with a message to `task_id`, to be stored in the same step; None: it brings none.

        Raises:
            InvalidParamsError: it can't be taken as it is.
        """
        if not params.configuration.HasField("task_push_notification_config"):
            return None
        given = params.configuration.task_push_notification_config
        field = "configuration.task_push_notification_config."
        if given.task_id not in ("", task_id):
            raise invalid(f"{field}task_id", "Leave it out: the config is for the task of this message.")
        return self._sealed(await self._judged(given, context, task_id, field))

    async def create(
        self, scope: Scope, given: TaskPushNotificationConfig, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        """Stores a config, in the place of one with the same id; an id is given to one that has none."""
        subscription = await self._judged(given, context, given.task_id, "")
        new = self._sealed(subscription)
        match await self._store.run(save_push_config(self._keys, scope, given.task_id, new)):
            case answers.Missing():
                await self._kept.read(scope, given.task_id, history_length=0, artifacts=False)
                text = "The task has ended, and is archived: nothing more is posted of it"
                raise UnsupportedOperationError(text, data={"taskId": given.task_id})
            case answers.TooManyConfigs():
                raise too_many(given.task_id)
        return subscription.without_secrets()

    async def get(self, scope: Scope, task_id: str, config_id: str) -> TaskPushNotificationConfig:
        """One config."""
        sealed = await self._store.run(read_push_config(self._keys, scope, task_id, config_id))
        if sealed is None:
            raise TaskNotFoundError("No such push notification config", data={"taskId": task_id, "id": config_id})
        return self._opened(task_id, config_id, sealed)

    async def list(
        self, scope: Scope, params: ListTaskPushNotificationConfigsRequest
    ) -> ListTaskPushNotificationConfigsResponse:
        """The configs of a task in the order of their ids, a page at a time; without a size all of them."""
        if params.page_size < 0:
            raise invalid("page_size", "A number of configs, or none.")
        found = await self._store.run(list_push_configs(self._keys, scope, params.task_id))
        if found is None:  # an archived task has none
            await self._kept.read(scope, params.task_id, history_length=0, artifacts=False)
        left = [pair for pair in found or () if pair[0] > params.page_token]
        page = left[: params.page_size or None]
        return ListTaskPushNotificationConfigsResponse(
            configs=[self._opened(params.task_id, config_id, sealed) for config_id, sealed in page],
            next_page_token=page[-1][0] if len(page) < len(left) else "",
        )

    async def delete(self, scope: Scope, task_id: str, config_id: str) -> None:
        """Forgets a config; one that is not there is forgotten already."""
        if not await self._store.run(delete_push_config(self._keys, scope, task_id, config_id)):
            await self._kept.read(scope, task_id, history_length=0, artifacts=False)

    async def _judged(
        self, given: TaskPushNotificationConfig, context: ServerCallContext, task_id: str, field: str
    ) -> Subscription:
        if len(given.id) > MAX_ID_LENGTH or not given.id.isprintable():
            raise invalid(f"{field}id", f"At most {MAX_ID_LENGTH} characters, and printable ones.")
        try:
            wanted = wanted_of(context.state.get("headers", {}).get(EVENTS, ""))
        except ValueError as e:
            raise invalid("A2A-Push-Events", f"{e}.") from None
        config = TaskPushNotificationConfig()
        config.CopyFrom(given)
        config.id = given.id or str(uuid4())
        config.task_id = task_id
        config.ClearField("tenant")  # the task's scope has it
        try:
            target = check_config(config, self._allow)
            await check_target_now(target, self._resolver, self._allow)
        except TargetRefused as e:
            raise invalid(f"{field}{e.field}", f"{e.rule}.") from None
        return Subscription(config, context.state.get(PROTOCOL, "1.0"), wanted)

    def _sealed(self, subscription: Subscription) -> NewPushConfig:
        config = subscription.config
        sealed = self._sealer.seal(subscription.to_bytes(), config.task_id, config.id)
        return NewPushConfig(config.id, sealed, self._sealer.fingerprint)

    def _opened(self, task_id: str, config_id: str, sealed: bytes) -> TaskPushNotificationConfig:
        return Subscription.from_bytes(self._sealer.open(sealed, task_id, config_id)).without_secrets()


def too_many(task_id: str) -> UnsupportedOperationError:
    """What a client is told that has as many configs as there may be."""
    return UnsupportedOperationError(
        f"A task has at most {MAX_PUSH_CONFIGS} push notification configs: delete one", data={"taskId": task_id}
    )
