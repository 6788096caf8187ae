"""Caller of a run. The gateway transfers the caller to the worker without credentials."""

from __future__ import annotations

from a2a.auth.user import UnauthenticatedUser
from a2a.server.context import ServerCallContext

from a2a_celery.caller import CARRIED_HEADERS, Caller

HEADERS = {
    "Authorization": "Bearer s3cret",
    "Cookie": "session=s3cret",
    "Proxy-Authorization": "s3cret",
    "X-Api-Key": "s3cret",
    "X-Forwarded-For": "s3cret",
    "A2A-Version": "1.0",
    "traceparent": "00-1-2-01",
}

CALLER = Caller("ann", True, "tenant", ("ext:a", "ext:b"), {"a2a-version": "1.0"})


def context(**state: object) -> ServerCallContext:
    return ServerCallContext(
        user=CALLER.call_context().user, tenant="tenant", requested_extensions={"ext:b", "ext:a"}, state=dict(state)
    )


def test_a_caller_survives_being_stored() -> None:
    assert Caller.from_json(CALLER.to_json()) == CALLER
    assert Caller.from_json(Caller().to_json()) == Caller()
    caller = Caller(user='ünï "quoted"\n')
    assert Caller.from_json(caller.to_json()) == caller


def test_a_caller_has_what_the_gateway_knows() -> None:
    assert Caller.of(context(headers={"A2A-Version": "1.0"})) == CALLER


def test_the_executor_gets_the_context_the_gateway_had() -> None:
    second_context = CALLER.call_context()

    assert (second_context.user.user_name, second_context.user.is_authenticated, second_context.tenant) == (
        "ann",
        True,
        "tenant",
    )
    assert second_context.requested_extensions == {"ext:a", "ext:b"}
    assert Caller.of(second_context) == CALLER


def test_an_anonymous_caller_has_no_name() -> None:
    caller = Caller.of(ServerCallContext(user=UnauthenticatedUser()))

    assert (caller.user, caller.authenticated) == ("", False)


def test_credentials_never_travel() -> None:
    caller_json = Caller.of(context(headers=HEADERS, auth="s3cret")).to_json()

    assert b"s3cret" not in caller_json
    assert dict(Caller.from_json(caller_json).headers) == {"a2a-version": "1.0", "traceparent": "00-1-2-01"}


def test_no_header_of_credentials_is_among_those_carried() -> None:
    assert not {"authorization", "cookie", "proxy-authorization", "x-api-key"} & set(CARRIED_HEADERS)
