"""One POST to one webhook, done properly; knows no Redis and no Celery.

A config's URL is judged when it is set (`targets`), and the address when it is connected to (`network`). A
`PostRequest` is an event as its subscriber reads it, with its signature; a `Poster` posts it, once, and says what
became of it. When to try again is `Backoff`'s to say, and whose turn it is the caller's.
"""

from .addresses import Network
from .answers import Answer
from .backoff import Backoff
from .hosts import Held, Hosts
from .network import Resolver, SystemResolver, check_target_now
from .post import Delivered, Gone, Poster, Refused, Result, Retry, Way
from .request import PostRequest, delivery_id
from .signature import Signer, derived_secret
from .subscription import Subscription, Wanted, wanted_of
from .targets import Target, TargetRefused, check_config, parse_target

__all__ = [
    "Answer",
    "Backoff",
    "Delivered",
    "Gone",
    "Held",
    "Hosts",
    "Network",
    "PostRequest",
    "Poster",
    "Refused",
    "Resolver",
    "Result",
    "Retry",
    "Signer",
    "Subscription",
    "SystemResolver",
    "Target",
    "TargetRefused",
    "Wanted",
    "Way",
    "check_config",
    "check_target_now",
    "delivery_id",
    "derived_secret",
    "parse_target",
    "wanted_of",
]
