"""compose/envoy/envoy.yaml, compared with compose/nginx.conf, docs/deployment.md, and the limits of the gateway."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from a2a_celery.gateway.bindings.grpc import CONNECTION_OPTIONS
from a2a_celery.gateway.middleware.bodies import BODY_TIMEOUT, MIN_BODY_RATE
from a2a_celery.settings import default_of

ROOT = Path(__file__).resolve().parents[2]
ENVOY = yaml.safe_load((ROOT / "compose" / "envoy" / "envoy.yaml").read_text(encoding="utf-8"))
NGINX = (ROOT / "compose" / "nginx.conf").read_text(encoding="utf-8")
PAGE = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
TABLE = PAGE.partition("| limit | nginx | Envoy |\n")[2].partition("\n\n")[0]
MAX_REQUEST_BYTES = int(default_of("max_request_bytes"))


def values(tree: Any, name: str) -> Iterator[Any]:
    """Yield the values of all fields of the configuration that are called `name`."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            if key == name:
                yield value
            yield from values(value, name)
    elif isinstance(tree, list):
        for item in tree:
            yield from values(item, name)


def value(tree: Any, name: str) -> Any:
    """Return the value of all fields that are called `name`. The fields must have the same value."""
    found = list(values(tree, name))
    assert found, name
    assert all(other == found[0] for other in found), name
    return found[0]


def nginx(directive: str) -> str:
    """Return the argument of a directive of nginx. All directives with this name must have the same argument."""
    [argument] = set(re.findall(rf"^ *{directive} +([^;]+);", NGINX, re.MULTILINE))
    return str(argument)


def seconds(duration: str) -> int:
    return int(duration[:-1]) * {"s": 1, "m": 60, "h": 3600}[duration[-1]]


LISTENERS = {listener["name"]: listener for listener in ENVOY["static_resources"]["listeners"]}
CLUSTERS = {cluster["name"]: cluster for cluster in ENVOY["static_resources"]["clusters"]}


@pytest.mark.parametrize(
    ("field", "directive"),
    [
        ("request_headers_timeout", "client_header_timeout"),
        ("stream_flush_timeout", "send_timeout"),
        ("stream_idle_timeout", "proxy_read_timeout"),
        ("stream_idle_timeout", "grpc_read_timeout"),
        ("connect_timeout", "proxy_connect_timeout"),
        ("connect_timeout", "grpc_connect_timeout"),
    ],
)
def test_envoy_has_the_time_limits_of_nginx(field: str, directive: str) -> None:
    assert seconds(value(ENVOY, field)) == seconds(nginx(directive))


@pytest.mark.parametrize("name", LISTENERS)
def test_a_listener_limits_bodies_and_connections_but_not_streams(name: str) -> None:
    listener = LISTENERS[name]
    limit, megabyte = value(listener, "max_request_bytes"), nginx("client_max_body_size")

    assert limit == int(megabyte.removesuffix("m")) << 20
    assert limit > MAX_REQUEST_BYTES, "the gateway responds with an A2A error"
    assert seconds(value(listener, "request_timeout")) == BODY_TIMEOUT + MAX_REQUEST_BYTES / MIN_BODY_RATE
    assert seconds(value(listener, "idle_timeout")) == seconds(nginx("keepalive_timeout"))
    assert set(values(listener, "timeout")) == {"0s"}
    assert value(listener, "retry_on") == "connect-failure,refused-stream", "a request that was sent is not sent again"
    filters = [item["name"].rpartition(".")[2] for item in value(listener, "http_filters")]
    assert filters == ["body_size_limit", "router"]


def test_envoy_closes_an_idle_connection_before_the_gateway() -> None:
    gateway = (ROOT / "a2a_celery" / "cli" / "serve" / "gateway.py").read_text(encoding="utf-8")
    keep_alive = re.search(r'"timeout_keep_alive": (\d+)', gateway)
    assert keep_alive is not None

    assert seconds(value(CLUSTERS["gateway"], "idle_timeout")) < int(keep_alive[1])
    assert (
        seconds(value(CLUSTERS["gateway_grpc"], "idle_timeout")) * 1000
        < dict(CONNECTION_OPTIONS)["grpc.max_connection_idle_ms"]
    )


def test_envoy_hides_the_paths_that_nginx_hides() -> None:
    nginx_paths = set(re.findall(r"location (=|\^~) (\S+) +\{ return 404; \}", NGINX))
    routes = value(LISTENERS["http"], "virtual_hosts")[0]["routes"]
    envoy_paths = {
        ("=" if "path" in route["match"] else "^~", next(iter(route["match"].values())))
        for route in routes
        if route.get("direct_response") == {"status": 404}
    }

    assert nginx_paths
    assert envoy_paths == nginx_paths
    assert [route["match"] for route in routes[len(nginx_paths) :]] == [{"prefix": "/"}]


def test_the_page_has_the_values_of_both_configurations() -> None:
    envoy_fields = re.findall(r"`(\w+): (\w+)`", TABLE)
    directives = re.findall(r"`([a-z_]+) (\w[^`]*)`", TABLE)

    assert len(envoy_fields) >= 8
    assert {name: expected for name, expected in envoy_fields if expected not in map(str, values(ENVOY, name))} == {}
    assert {name: expected for name, expected in directives if expected != nginx(name)} == {}
