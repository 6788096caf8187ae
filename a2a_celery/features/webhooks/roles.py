"""Watcher roles that post to webhooks."""

from __future__ import annotations

import logging
from urllib.request import getproxies_environment

from ...crypto.sealing import sealer_of
from ...operations.service import TaskService
from ...push import Poster, parse_private_key
from ...store.log.pubsub import PubSubListener
from ...watcher.metrics import WatcherMetrics
from ...watcher.role_loop import RoleLoop
from .deliverer import Deliverer
from .keys import delivery_notifications
from .replayer import Replayer

logger = logging.getLogger(__name__)


def delivery_loops(service: TaskService, metrics: WatcherMetrics, notifications: PubSubListener) -> list[RoleLoop]:
    """Return the loops of the roles that post to webhooks. The list is empty without `secret_key`, because clients then
    cannot set webhooks."""
    settings, store, keys = service.settings, service.store, service.keys
    sealer = sealer_of(settings.secret_keys)
    if sealer is None:
        return []
    if proxies := sorted(getproxies_environment().keys() & {"http", "https", "all"}):
        variables = ", ".join(f"{name.upper()}_PROXY" for name in proxies)
        logger.warning(
            "posts to webhooks do not use %s, because a proxy could connect to an address that is not allowed: let "
            "this process connect to the receivers directly",
            variables,
        )
    private_key = next(map(parse_private_key, settings.webhook_private_keys), None)
    deliverer = Deliverer(
        store,
        keys,
        sealer,
        Poster(settings.push_networks),
        settings.secret_keys,
        settings.lease_ttl,
        metrics=metrics,
        private_key=private_key,
    )
    replayer = Replayer(store, keys, sealer, deliverer, settings.lease_ttl)
    return [
        RoleLoop(role, notifications.listen(delivery_notifications(keys)), metrics, on_stop=role.aclose)
        for role in (deliverer, replayer)
    ]
