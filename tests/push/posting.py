"""Posts over TLS to a receiver on this machine, whose name is a.example."""

from __future__ import annotations

from a2a_celery.clock import SYSTEM_CLOCK, Clock
from a2a_celery.push import Hosts, Poster, PostRequest
from a2a_celery.push.post import TIMEOUT
from tests.support.certificates import Authority
from tests.support.http2_receiver import Http2Receiver

from .names import LOCAL, Names

SECRET = "s3cret-credentials"
HUNG_UP = "the connection was closed without an answer"
NOT_HTTP = "the answer is not HTTP"


def poster_of(
    authority: Authority, *, timeout: float = TIMEOUT, hosts: Hosts | None = None, clock: Clock = SYSTEM_CLOCK
) -> Poster:
    names = Names(a_example=["127.0.0.1"])
    return Poster(LOCAL, resolver=names, ssl_context=authority.client(), timeout=timeout, hosts=hosts, clock=clock)


def request(hooks: Http2Receiver, path: str = "/hook", body: bytes = b"{}", **headers: str) -> PostRequest:
    named = {"Content-Type": "application/a2a+json", "Authorization": f"Bearer {SECRET}", **headers}
    return PostRequest(hooks.url(path, "a.example"), named, body, (SECRET,))
