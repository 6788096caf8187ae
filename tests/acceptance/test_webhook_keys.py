"""Ed25519 signatures of webhooks. The key is rotated during deliveries, and the receiver accepts every post."""

from __future__ import annotations

import asyncio
import base64
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from a2a_celery.client.public_keys import REFRESH_EVERY, PublicKeys
from a2a_celery.client.receiver import Notification, Verifier, receive, receiver_app
from a2a_celery.crypto.webhook_keys import JWKS_PATH
from a2a_celery.features.webhooks.deliveries import deliveries
from a2a_celery.lifecycle import Event
from a2a_celery.push import parse_private_key
from a2a_celery.store import Keys, SyncStore
from tests.support.clients.bindings import message_json, rpc
from tests.support.clocks import ManualClock
from tests.support.processes.fleet import Fleet, Gateway, Process, running_fleet
from tests.support.processes.serving import serve_app
from tests.support.receivers.posts import DELIVERING, body_with_config, visible_events
from tests.support.waiting import eventually, eventually_async

OLD, NEW = ("whsk_" + base64.b64encode(bytes([number]) * 32).decode() for number in (1, 2))
TASKS, CHUNKS = 8, "6"
"""Number of tasks in each phase of the rotation, and number of chunks of a task."""


def public(key: str) -> Ed25519PublicKey:
    return parse_private_key(key).public_key()


@dataclass
class Recorder:
    """ASGI middleware that records each request with its status."""

    app: ASGIApp
    posts: list[tuple[dict[str, str], bytes, int]] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        body, headers = bytearray(), {name.decode(): value.decode() for name, value in scope["headers"]}

        async def reads() -> Message:
            message = await receive()
            body.extend(message.get("body", b""))
            return message

        async def writes(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.posts.append((headers, bytes(body), message["status"]))
            await send(message)

        await self.app(scope, reads, writes)


def signer_of(headers: dict[str, str], body: bytes) -> str:
    """Return the key that signed a post. Fail if neither `OLD` nor `NEW` did."""
    signed_content = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    [signature] = [text for text in headers["webhook-signature"].split() if text.startswith("v1a,")]
    for key in (OLD, NEW):
        try:
            public(key).verify(base64.b64decode(signature.removeprefix("v1a,")), signed_content)
        except InvalidSignature:
            continue
        return key
    raise AssertionError(f"signed by another key: {headers}")


@dataclass
class Deployment:
    """Gateway and watcher that read their keys from one file."""

    fleet: Fleet
    key_file: Path
    gateway: Gateway
    watcher: Process

    @classmethod
    def start(cls, fleet: Fleet, key_file: Path) -> Deployment:
        env = {"A2A_WEBHOOK_PRIVATE_KEY_FILE": str(key_file)}
        return cls(fleet, key_file, fleet.gateway(**env), fleet.watcher(**env))

    def restart(self, *keys: str) -> None:
        """Restart the gateway and the watcher with `keys`."""
        self.key_file.write_text("\n".join(keys))
        env = {"A2A_WEBHOOK_PRIVATE_KEY_FILE": str(self.key_file)}
        self.gateway.stop()
        self.gateway = self.fleet.gateway(instead_of=self.gateway, **env)
        self.watcher.stop()
        self.watcher = self.fleet.watcher(**env)

    def send(self, url: str) -> str:
        """Send a message with a webhook, and return the id of the task."""
        body = body_with_config(message_json(CHUNKS) | {"configuration": {"returnImmediately": True}}, url)
        task_id: str = rpc(self.gateway, "SendMessage", body, agent="count")["result"]["task"]["id"]
        return task_id


async def test_a_key_is_changed_with_posts_under_way(tmp_path: Path) -> None:
    handled_events: defaultdict[str, list[tuple[int, Event]]] = defaultdict(list)

    async def handle(notification: Notification) -> None:
        await asyncio.sleep(0.05)
        handled_events[notification.task_id].append((notification.version, notification.event))

    (tmp_path / "keys").write_text(OLD)
    with running_fleet(tmp_path, **DELIVERING) as fleet:
        store = SyncStore(fleet.redis.store_url)
        deployment = await asyncio.to_thread(Deployment.start, fleet, tmp_path / "keys")
        await asyncio.to_thread(fleet.worker, pool="threads", concurrency=8)
        age = ManualClock()
        keys_of_sender = PublicKeys(jwks_url=f"{deployment.gateway.url}{JWKS_PATH}", clock=age)
        recorder = Recorder(receiver_app(handle, public_keys=keys_of_sender))
        tasks: list[str] = []

        async def is_due() -> bool:
            return await asyncio.to_thread(lambda: any(deliveries(store, Keys("a2a"))))

        async def begun_posts(number: int) -> None:
            async def has_enough() -> bool:
                return len(recorder.posts) >= number

            await eventually_async(has_enough, what=f"{number} posts")

        async def require_nothing_due() -> None:
            async def is_done() -> bool:
                return not await is_due()

            await eventually_async(is_done, within=120, what="no delivery is due")

        async with serve_app(recorder) as url:
            for keys in ((OLD, NEW), (NEW, OLD), (NEW,)):
                posts_before = len(recorder.posts)
                tasks += [await asyncio.to_thread(deployment.send, f"{url}/hook") for _ in range(TASKS)]
                await begun_posts(posts_before + TASKS)
                assert await is_due(), "the keys must change during deliveries"
                await asyncio.to_thread(deployment.restart, *keys)
                await require_nothing_due()
                age.advance(REFRESH_EVERY)
            last = len(recorder.posts)
            tasks.append(await asyncio.to_thread(deployment.send, f"{url}/hook"))
            await begun_posts(last + 3)
            await require_nothing_due()
            delivered_posts = list(recorder.posts)
            old_key_post = next(post for post in recorder.posts if signer_of(*post[:2]) == OLD)
            new_key_post = recorder.posts[-1]
            await answers_to_forgeries(url, old_key_post, new_key_post)

        # 503: the post of a stopped watcher was repeated while the receiver still handled the first
        assert {status for _, _, status in delivered_posts} <= {204, 503}
        signers = [signer_of(headers, body) for headers, body, _ in delivered_posts]
        assert (set(signers), set(signers[last:])) == ({OLD, NEW}, {NEW})
        for task_id in tasks:
            assert handled_events[task_id] == sorted(visible_events(store, task_id).items())
        store.close()


async def answers_to_forgeries(
    url: str, old_key_post: tuple[dict[str, str], bytes, int], new_key_post: tuple[dict[str, str], bytes, int]
) -> None:
    """Require that the receiver rejects posts with a withdrawn key, a different body, a different id or an old time,
    and accepts a repeated post."""
    async with httpx.AsyncClient(trust_env=False) as http:
        headers, body, _ = new_key_post
        del headers["content-length"], old_key_post[0]["content-length"]

        async def status(headers: dict[str, str], body: bytes, to: str = url) -> int:
            answer = await http.post(f"{to}/hook", headers=headers, content=body)
            return answer.status_code

        assert await status(*old_key_post[:2]) == 401
        assert await status(headers, body + b" ") == 401
        assert await status(headers | {"webhook-id": "msg_" + "0" * 32 + "_1"}, body) == 401
        assert await status(headers | {"webhook-timestamp": str(int(headers["webhook-timestamp"]) + 1)}, body) == 401
        assert await status(headers, body) == 204

        late_verifier = Verifier(public_keys=PublicKeys([public_key_text(NEW)]), clock=ManualClock(time.time() + 400))

        async def endpoint(request: Request) -> Response:
            await receive(request, late_verifier)
            return Response(status_code=204)

        app = Starlette(routes=[Route("/hook", endpoint, methods=["POST"])])
        async with serve_app(app) as late_url:
            assert await status(headers, body, late_url) == 401


def public_key_text(key: str) -> str:
    return "whpk_" + base64.b64encode(public(key).public_bytes_raw()).decode()


def test_doctor_names_what_is_on_and_a_key_that_no_gateway_publishes(tmp_path: Path) -> None:
    with running_fleet(tmp_path, **DELIVERING) as fleet:
        fleet.worker()
        fleet.watcher(A2A_WEBHOOK_PRIVATE_KEY=OLD)
        eventually(lambda: "ok     watchers: " in fleet.command("a2a", "doctor").stdout, what="it has announced itself")
        right = fleet.command("a2a", "doctor", A2A_WEBHOOK_PRIVATE_KEY=f"{OLD} {NEW}").stdout
        output = fleet.command("a2a", "doctor", A2A_WEBHOOK_PRIVATE_KEY=NEW).stdout
        none = fleet.command("a2a", "doctor").stdout

    assert f"signatures of webhooks: HMAC-SHA256 (v1) and Ed25519 (v1a) with {public_key_text(OLD)}" in right
    assert f"published too: {public_key_text(NEW)}" in right
    assert "ok     signatures: watchers sign with published keys" in right
    for text in (output, none):
        assert f"signs webhooks with {public_key_text(OLD)}, which gateways with" in text
    assert "signatures of webhooks: HMAC-SHA256 (v1)\n" in none
    assert OLD not in right + output + none


@pytest.mark.parametrize(
    ("role", "env", "why"),
    [
        ("watcher", {"A2A_WEBHOOK_PRIVATE_KEY": "whsk_AAAA"}, "base64 of 32 or 64 bytes"),
        ("gateway", {"A2A_WEBHOOK_PRIVATE_KEY": NEW, "A2A_SECRET_KEY": ""}, "needs a2a_secret_key"),
    ],
)
def test_what_can_not_be_honoured_ends_the_process_in_one_line(
    tmp_path: Path, role: str, env: dict[str, str], why: str
) -> None:
    with running_fleet(tmp_path, **DELIVERING) as fleet:
        result = fleet.command("a2a", role, *(("--port", "0") if role == "gateway" else ()), **env)

    assert result.returncode == 1
    assert why in result.stderr
    assert "Traceback" not in result.stderr
    assert NEW not in result.stderr
