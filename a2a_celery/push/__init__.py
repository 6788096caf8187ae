"""HTTP client for webhooks. The package uses neither Redis nor Celery.

``targets`` validates the URL of a config when the config is set. ``network`` checks the address of each connection.
`PostRequest` is the signed request for an event. `Poster` posts a request once and returns the result. `Backoff` is the
retry schedule. The caller determines the order of the posts.
"""

from .circuit_breaker import Backoff, CircuitBreaker, Deferred
from .network import Network, Resolver, SystemResolver
from .poster import Delivered, Gone, Poster, PostRefused, PostResult, Retry, Route
from .request import PostRequest, Signer, delivery_id, derive_secret, format_public_key, parse_private_key
from .responses import WebhookResponse
from .subscription import EventFilter, Subscription, parse_event_filters
from .targets import Target, TargetRefused, check_config, parse_target

__all__ = [
    "Backoff",
    "CircuitBreaker",
    "Deferred",
    "Delivered",
    "EventFilter",
    "Gone",
    "Network",
    "PostRefused",
    "PostRequest",
    "PostResult",
    "Poster",
    "Resolver",
    "Retry",
    "Route",
    "Signer",
    "Subscription",
    "SystemResolver",
    "Target",
    "TargetRefused",
    "WebhookResponse",
    "check_config",
    "delivery_id",
    "derive_secret",
    "format_public_key",
    "parse_event_filters",
    "parse_private_key",
    "parse_target",
]
