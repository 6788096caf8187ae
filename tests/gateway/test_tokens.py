"""Bearer tokens of callers. The gateway accepts valid tokens and refuses all others."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from hypothesis import given
from hypothesis import strategies as st
from joserfc.jwk import ECKey, OctKey, RSAKey

from a2a_celery.gateway.auth.keys import KeySet, StaticKeys, read_key
from a2a_celery.gateway.auth.schemes import CredentialsRefused, Identity, PresentedCredentials, RefusalReason
from a2a_celery.gateway.auth.tokens import LEEWAY, MAX_LENGTH, BearerTokens
from tests.support.clients.credentials import AUDIENCE, ISSUER, SHARED, claims, rsa_key, token

KEY, OTHER = rsa_key("first"), rsa_key("first")
PEM = KEY.public_key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def tokens(keys: StaticKeys | None = None, *algorithms: str, **options: Any) -> BearerTokens:
    return BearerTokens(
        keys or StaticKeys(KeySet([KEY])),
        algorithms=algorithms or ("RS256",),
        issuer=ISSUER,
        audiences=[AUDIENCE, "https://other.example.com"],
        **options,
    )


async def identity_of(scheme: BearerTokens, authorization: str) -> Identity | None:
    """Return the identity that `scheme` derives from an Authorization header."""
    return await scheme.identify(
        PresentedCredentials(lambda name: [authorization] if name == "authorization" else [], None)
    )


async def test_a_good_token_identifies_its_owner() -> None:
    assert await identity_of(tokens(), f"Bearer {token(KEY, 'RS256')}") == Identity("alice")
    assert await identity_of(tokens(), f"bearer  {token(KEY, 'RS256')}") == Identity("alice")
    several = token(KEY, "RS256", aud=["https://else.example.com", AUDIENCE])
    assert await identity_of(tokens(), f"Bearer {several}") == Identity("alice")


async def test_a_header_may_say_more_than_is_needed() -> None:
    assert await identity_of(tokens(), f"Bearer {signed_token({'alg': 'RS256', 'typ': 'at+jwt', 'x': 1})}") == Identity(
        "alice"
    )


async def test_clocks_may_differ_a_little() -> None:
    now = int(time.time())
    a_little = token(KEY, "RS256", exp=now - LEEWAY // 2, nbf=now + LEEWAY // 2, iat=now + LEEWAY // 2)
    assert await identity_of(tokens(), f"Bearer {a_little}") == Identity("alice")


async def test_credentials_of_other_schemes_are_left_to_other_authenticators() -> None:
    for other in ("Basic abc", "", "Negotiate x"):
        assert await identity_of(tokens(), other) is None


@pytest.mark.parametrize(
    ("claim", "tenants"),
    [
        (["acme", "beta"], {"acme", "beta"}),
        ("acme", {"acme"}),
        ([""], {""}),
        ([], set()),
        (None, set()),
        ({"acme": 1}, set()),
        ([1, "beta", None, ["x"]], {"beta"}),
        (True, set()),
    ],
)
async def test_tenants_are_those_of_the_claim_and_no_others(claim: Any, tenants: set[str]) -> None:
    bearer = token(KEY, "RS256", **{"https://example.com/tenants": claim})
    identity = await identity_of(tokens(tenants_claim="https://example.com/tenants"), f"Bearer {bearer}")

    assert identity == Identity("alice", frozenset(tenants))
    assert not identity.may_use("gamma")


async def test_the_owner_may_be_another_claim() -> None:
    bearer = token(KEY, "RS256", client_id="acme-bot")
    assert await identity_of(tokens(owner_claim="client_id"), f"Bearer {bearer}") == Identity("acme-bot")


@pytest.mark.parametrize("algorithm", ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"])
async def test_every_algorithm_of_rsa(algorithm: str) -> None:
    assert await identity_of(tokens(None, algorithm), f"Bearer {token(KEY, algorithm)}") == Identity("alice")


@pytest.mark.parametrize(("algorithm", "curve"), [("ES256", "P-256"), ("ES384", "P-384"), ("ES512", "P-521")])
async def test_every_algorithm_of_elliptic_curves(algorithm: str, curve: str) -> None:
    key = ECKey.generate_key(curve)
    pem = key.public_key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    scheme = tokens(read_key(pem, [algorithm]), algorithm)
    assert await identity_of(scheme, f"Bearer {token(key, algorithm)}") == Identity("alice")


@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
async def test_every_algorithm_of_secrets(algorithm: str) -> None:
    secret = "s" * 64
    scheme = tokens(read_key(secret, [algorithm]), algorithm)
    assert await identity_of(scheme, f"Bearer {token(OctKey.import_key(secret), algorithm)}") == Identity("alice")


def encode(part: Any) -> str:
    """Return a part of a token in base64url."""
    raw = part if isinstance(part, bytes) else json.dumps(part).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def altered_token(change: Callable[[list[str]], list[str]]) -> str:
    """Return a valid token whose parts are modified by `change`."""
    return ".".join(change(token(KEY, "RS256").split(".")))


def hmac_by_public_key() -> str:
    """Return a token that is signed with the public key as an HMAC secret, which is a known attack."""

    text = f"{encode({'alg': 'HS256', 'kid': 'first'})}.{encode(claims())}"
    return f"{text}.{encode(hmac.new(PEM, text.encode(), hashlib.sha256).digest())}"


def signed_token(header: dict[str, Any]) -> str:
    """Return a token with `header`, valid claims and a valid signature."""
    text = f"{encode(header)}.{encode(claims())}"
    assert isinstance(KEY.private_key, RSAPrivateKey)
    return f"{text}.{encode(KEY.private_key.sign(text.encode(), PKCS1v15(), SHA256()))}"


NOW = int(time.time())
BAD: dict[str, tuple[RefusalReason, Callable[[], str]]] = {
    "no signature": (
        RefusalReason.ALGORITHM,
        lambda: altered_token(lambda p: [encode({"alg": "none", "kid": "first"}), p[1], ""]),
    ),
    "none, in capitals": (
        RefusalReason.ALGORITHM,
        lambda: altered_token(lambda p: [encode({"alg": "NONE"}), p[1], p[2]]),
    ),
    "the public key as a secret": (RefusalReason.ALGORITHM, hmac_by_public_key),
    "another algorithm of the same key": (RefusalReason.ALGORITHM, lambda: token(KEY, "RS512")),
    "no algorithm": (RefusalReason.UNREADABLE, lambda: altered_token(lambda p: [encode({"kid": "first"}), p[1], p[2]])),
    "an algorithm that is no word": (
        RefusalReason.ALGORITHM,
        lambda: altered_token(lambda p: [encode({"alg": ["RS256"]}), *p[1:]]),
    ),
    "another key": (RefusalReason.SIGNATURE, lambda: token(OTHER, "RS256")),
    "another owner": (RefusalReason.SIGNATURE, lambda: altered_token(lambda p: [p[0], encode({"sub": "bob"}), p[2]])),
    "half a signature": (RefusalReason.SIGNATURE, lambda: altered_token(lambda p: [*p[:2], p[2][:100]])),
    "an empty signature": (RefusalReason.SIGNATURE, lambda: altered_token(lambda p: [*p[:2], ""])),
    "a key of its own": (
        RefusalReason.UNKNOWN_KEY,
        lambda: token(OTHER, "RS256", header={"jwk": OTHER.as_dict(private=False), "kid": "mine"}),
    ),
    "an unknown key": (RefusalReason.UNKNOWN_KEY, lambda: token(OTHER, "RS256", header={"kid": "second"})),
    "a name that is none": (
        RefusalReason.UNREADABLE,
        lambda: altered_token(lambda p: [encode({"alg": "RS256", "kid": 1}), *p[1:]]),
    ),
    "what must be understood": (RefusalReason.SIGNATURE, lambda: signed_token({"alg": "RS256", "crit": ["x"], "x": 1})),
    "a payload that is not encoded": (
        RefusalReason.SIGNATURE,
        lambda: signed_token({"alg": "RS256", "crit": ["b64"], "b64": False}),
    ),
    "over": (RefusalReason.EXPIRED, lambda: token(KEY, "RS256", exp=NOW - LEEWAY - 60)),
    "to come": (RefusalReason.EXPIRED, lambda: token(KEY, "RS256", nbf=int(time.time()) + LEEWAY + 60)),
    "from the future": (RefusalReason.EXPIRED, lambda: token(KEY, "RS256", iat=int(time.time()) + LEEWAY + 60)),
    "for ever": (RefusalReason.CLAIMS, lambda: token(KEY, "RS256", exp=None)),
    "an end that is no time": (RefusalReason.CLAIMS, lambda: token(KEY, "RS256", exp="tomorrow")),
    "an end that is no number": (RefusalReason.CLAIMS, lambda: token(KEY, "RS256", exp=float("nan"))),
    "for somebody else": (RefusalReason.CLAIMS, lambda: token(KEY, "RS256", aud="https://else.example.com")),
    "for nobody": (RefusalReason.CLAIMS, lambda: token(KEY, "RS256", aud=None)),
    "for an odd one": (RefusalReason.CLAIMS, lambda: token(KEY, "RS256", aud={AUDIENCE: 1})),
    "by somebody else": (RefusalReason.CLAIMS, lambda: token(KEY, "RS256", iss=f"{ISSUER}/else")),
    "by nobody": (RefusalReason.CLAIMS, lambda: token(KEY, "RS256", iss=None)),
    "by several": (RefusalReason.CLAIMS, lambda: token(KEY, "RS256", iss=[ISSUER])),
    "no owner": (RefusalReason.OWNER, lambda: token(KEY, "RS256", None)),
    "an empty owner": (RefusalReason.OWNER, lambda: token(KEY, "RS256", "")),
    "an owner too long": (RefusalReason.OWNER, lambda: token(KEY, "RS256", "x" * 257)),
    "an owner with a line of its own": (RefusalReason.OWNER, lambda: token(KEY, "RS256", "alice\nbob")),
    "nothing": (RefusalReason.UNREADABLE, lambda: ""),
    "two parts": (RefusalReason.UNREADABLE, lambda: "a.b"),
    "an encrypted one": (RefusalReason.UNREADABLE, lambda: "a.b.c.d.e"),
    "claims that are no object": (RefusalReason.SIGNATURE, lambda: altered_token(lambda p: [p[0], encode([1]), p[2]])),
    "a header that is no object": (RefusalReason.UNREADABLE, lambda: altered_token(lambda p: [encode([1]), *p[1:]])),
    "a header without end": (RefusalReason.UNREADABLE, lambda: altered_token(lambda p: [encode(b"[" * 3000), *p[1:]])),
    "too much": (RefusalReason.UNREADABLE, lambda: token(KEY, "RS256", much="x" * MAX_LENGTH)),
}


@pytest.mark.parametrize("name", BAD)
async def test_a_bad_token_is_refused_for_what_it_is(name: str) -> None:
    reason, make = BAD[name]
    bearer = make()
    with pytest.raises(CredentialsRefused) as exc_info:
        await identity_of(tokens(), f"Bearer {bearer}")

    assert exc_info.value.why == reason
    assert exc_info.value.bad_token
    assert exc_info.value.__cause__ is None
    assert exc_info.value.__suppress_context__ or exc_info.value.__context__ is None
    assert not bearer or bearer not in str(exc_info.value)


@given(st.one_of(st.text(max_size=200), st.lists(st.binary(max_size=40), max_size=5)))
async def test_any_invalid_token_is_refused_without_an_error(raw: str | list[bytes]) -> None:
    text = raw if isinstance(raw, str) else ".".join(encode(part) for part in raw)
    with pytest.raises(CredentialsRefused):
        await identity_of(tokens(), f"Bearer {text}")


async def test_a_token_of_a_secret_is_nothing_where_public_keys_are_meant() -> None:
    with pytest.raises(CredentialsRefused):
        await identity_of(tokens(), f"Bearer {token(SHARED, 'HS256', header={'kid': 'first'})}")


async def test_a_key_without_a_name_is_every_tokens_and_one_of_several_is_named() -> None:
    pem = read_key(PEM.decode(), ["RS256"])
    assert await identity_of(tokens(pem), f"Bearer {token(KEY, 'RS256', header={'kid': 'any'})}") == Identity("alice")
    nameless = rsa_key(None)
    both = StaticKeys(KeySet([KEY, rsa_key("second")]))
    with pytest.raises(CredentialsRefused):
        await identity_of(tokens(both), f"Bearer {token(nameless, 'RS256')}")


def test_a_key_may_restrict_its_use() -> None:
    public = KEY.as_dict(private=False)
    small = RSAKey.import_key(public | {"use": "enc"})
    other = RSAKey.import_key(public | {"alg": "PS256"})
    curve = ECKey.import_key(
        ec.generate_private_key(ec.SECP384R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )
    for key in (small, other, curve):
        assert KeySet([key]).named(None, "RS256") is None
    assert KeySet([curve]).named(None, "ES256") is None
