"""Promises of docs/authentication.md and the tests that hold them."""

from __future__ import annotations

from collections.abc import Mapping

EACH_SCHEME = "acceptance/test_authentication.py::test_each_scheme_identifies_the_owner_over_every_binding"
RESPONSES = "gateway/test_authentication_page.py::test_each_situation_has_the_responses_of_the_page"

PROMISES: Mapping[str, tuple[str, ...]] = {
    "authentication/authentication/bearer-tokens": (
        EACH_SCHEME,
        "acceptance/test_tenancy.py::test_an_owner_may_do_everything",
    ),
    "authentication/authentication/api-keys": (
        EACH_SCHEME,
        "acceptance/test_proxies.py::test_a_message_and_a_large_one_come_through",
    ),
    "authentication/authentication/client-certificates-verified-by-a-proxy": (
        EACH_SCHEME,
        "gateway/test_auth_settings.py::test_a_proxy_is_known_by_its_address",
    ),
    "authentication/responses/the-caller-is-not-authenticated": (
        RESPONSES,
        "acceptance/test_authentication.py::test_anonymous_callers_are_refused",
    ),
    "authentication/responses/the-owner-may-not-use-the-tenant-whether-or": (
        RESPONSES,
        "acceptance/test_tenancy.py::test_a_forbidden_tenant_is_refused_whatever_it_contains",
    ),
    "authentication/responses/the-object-belongs-to-another-owner-or-does-not": (
        RESPONSES,
        "acceptance/test_tenancy.py::test_tasks_of_others_look_like_missing_ones",
    ),
    "authentication/responses/the-issuer-s-keys-cannot-be-loaded-and-none": (
        RESPONSES,
        "gateway/test_jwks.py::test_known_keys_survive_failed_fetches",
    ),
}

STATEMENTS: Mapping[str, str] = {}
