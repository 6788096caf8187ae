"""Signatures of posts, verified with the Standard Webhooks library."""

from __future__ import annotations

import base64
import json
import time

import pytest
from a2a.types import TaskPushNotificationConfig
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook, WebhookVerificationError

from a2a_celery.push import Signer, derive_secret
from a2a_celery.push.request import format_public_key, format_secret, parse_private_key, parse_secret

BODY = b'{"statusUpdate":{"taskId":"t"}}'
WHSEC = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@pytest.fixture
def now() -> int:
    """Current time, at which a test signs. Receivers refuse posts with older times."""
    return int(time.time())


def config(token: str = "", config_id: str = "c") -> TaskPushNotificationConfig:
    return TaskPushNotificationConfig(task_id="t", id=config_id, token=token, url="https://a.example/")


def verified_by(secret: str | bytes, headers: dict[str, str], body: bytes = BODY) -> bool:
    try:
        Webhook(secret).verify(body, headers)
    except WebhookVerificationError:
        return False
    return True


def test_the_example_of_the_specification() -> None:
    """Source: the Standard Webhooks libraries' own test vector."""
    body = b'{"test": 2432232314}'

    headers = Signer([parse_secret(WHSEC)]).headers("msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body)

    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


def test_a_secret_of_the_config_signs(now: int) -> None:
    headers = Signer.of(config(WHSEC)).headers("msg_1", now, BODY)

    assert verified_by(WHSEC, headers)
    assert not verified_by(WHSEC, headers, BODY + b" ")
    assert not verified_by(format_secret(b"x" * 24), headers)
    assert not verified_by(WHSEC, headers | {"webhook-id": "msg_2"})
    assert not verified_by(WHSEC, headers | {"webhook-timestamp": str(now + 1)})


def test_a_secret_has_a_minimum_length() -> None:
    assert parse_secret(format_secret(b"x" * 16)) == b"x" * 16
    with pytest.raises(ValueError, match="base64 of at least 16 bytes"):
        parse_secret(format_secret(b"x" * 15))


def test_any_other_token_signs_with_its_characters(now: int) -> None:
    headers = Signer.of(config("a plain token")).headers("msg_1", now, BODY)

    assert verified_by(b"a plain token", headers)


def test_without_a_token_the_deployment_derives_a_secret(now: int) -> None:
    headers = Signer.of(config(), [b"the deployment's"]).headers("msg_1", now, BODY)

    assert verified_by(format_secret(derive_secret(b"the deployment's", "t", "c")), headers)
    assert not verified_by(format_secret(derive_secret(b"the deployment's", "t", "d")), headers)
    assert not verified_by(format_secret(derive_secret(b"the deployment's", "u", "c")), headers)
    assert not verified_by(format_secret(derive_secret(b"another", "t", "c")), headers)


def test_while_a_key_is_changed_either_secret_verifies(now: int) -> None:
    headers = Signer.of(config(), [b"new", b"old"]).headers("msg_1", now, BODY)

    assert len(headers["webhook-signature"].split(" ")) == 2
    for key in (b"new", b"old"):
        assert verified_by(format_secret(derive_secret(key, "t", "c")), headers)


def test_without_any_secret_nothing_is_signed(now: int) -> None:
    assert Signer.of(config()).headers("msg_1", now, BODY) == {"webhook-id": "msg_1", "webhook-timestamp": str(now)}


def test_a_derived_secret_never_changes() -> None:
    """Receivers have stored derived secrets, so the secrets must stay valid in later versions."""
    assert derive_secret(b"key", "task", "config").hex() == (
        "cb9231d4330f79c75ae346b45afb760d2005141f45615d84bb05e29f11a53669"
    )


def test_ids_that_run_together_have_secrets_of_their_own() -> None:
    assert derive_secret(b"key", "ab", "c") != derive_secret(b"key", "a", "bc")


def test_ed25519(now: int) -> None:
    key = parse_private_key("whsk_" + base64.b64encode(bytes(range(32))).decode())

    headers = Signer.of(config(WHSEC), private_keys=[key]).headers("msg_1", now, BODY)

    hmac, ed25519 = headers["webhook-signature"].split(" ")
    version, _, signature = ed25519.partition(",")
    public = Ed25519PublicKey.from_public_bytes(base64.b64decode(format_public_key(key).removeprefix("whpk_")))
    assert (hmac[:3], version) == ("v1,", "v1a")
    public.verify(base64.b64decode(signature), f"msg_1.{now}.".encode() + BODY)
    with pytest.raises(InvalidSignature):
        public.verify(base64.b64decode(signature), f"msg_2.{now}.".encode() + BODY)
    assert verified_by(WHSEC, headers)


def test_a_private_key_may_come_with_its_public_half() -> None:
    seed = bytes(range(32))
    seed_and_public_key = seed + Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()
    first, second = (
        parse_private_key("whsk_" + base64.b64encode(data).decode()) for data in (seed, seed_and_public_key)
    )

    assert format_public_key(first) == format_public_key(second)


@pytest.mark.parametrize("text", ["", "whsk_", "whsk_!!", "whsk_QUJD", "whsec_" + "QUJD" * 11, "QUJD" * 11])
def test_an_invalid_private_key_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="whsk_"):
        parse_private_key(text)


@pytest.mark.parametrize("delivery_id", ["", "a.b", "a b", "a\r\nb", "ü", "a,b"])
def test_an_id_that_could_be_read_as_another_is_refused(delivery_id: str, now: int) -> None:
    with pytest.raises(ValueError, match="invalid delivery id"):
        Signer([b"x" * 32]).headers(delivery_id, now, BODY)


def test_no_secret_is_derived_from_nothing() -> None:
    with pytest.raises(ValueError, match="empty"):
        derive_secret(b"", "t", "c")


def test_a_signer_does_not_show_its_secrets() -> None:
    assert "s3cret" not in repr(Signer([b"s3cret"]))


@given(st.binary(min_size=16, max_size=64), st.text(max_size=200))
def test_any_secret_and_any_body(secret: bytes, text: str) -> None:
    try:
        body = json.dumps({"text": text}, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return

    assert parse_secret(format_secret(secret)) == secret
    assert verified_by(format_secret(secret), Signer([secret]).headers("msg_1", int(time.time()), body), body)
