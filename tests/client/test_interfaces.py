"""Choice of an interface in the card of a remote agent."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from typing import Any

import pytest
from a2a.types import AgentCard

from a2a_celery.client import NoTransport, RemoteAgent, Session
from a2a_celery.client.calling import Remote
from a2a_celery.client.connection.transports import Transports, host_of
from a2a_celery.errors import ConfigError
from tests.support.agents.basic import card
from tests.support.agents.states import States
from tests.support.processes.plain_server import plain_server


@pytest.fixture
async def states() -> AsyncIterator[str]:
    async with plain_server(States()) as url:
        yield url


async def test_a_card_without_a_way_to_its_agent_is_no_use() -> None:
    async with RemoteAgent("http://127.0.0.1:1", card=card("nowhere")) as agent:
        with pytest.raises(NoTransport, match="has no interface"):
            await agent.session().send("x")


@pytest.mark.parametrize(
    ("url", "interface", "binding", "is_used"),
    [
        ("http://agent.example/a", "http://agent.example/rpc", "JSONRPC", True),
        ("http://agent.example/a", "http://AGENT.example.:8080/rpc", "HTTP+JSON", True),
        ("http://agent.example/a", "https://agent.example/rpc", "JSONRPC", True),
        ("http://agent.example/a", "http://10.0.0.1/rpc", "JSONRPC", False),
        ("http://agent.example/a", "http://sub.agent.example/rpc", "JSONRPC", False),
        ("http://agent.example/a", "http://agent.example@10.0.0.1/rpc", "JSONRPC", False),
        ("http://agent.example/a", "http://10.0.0.1\\@agent.example/rpc", "JSONRPC", True),
        ("http://agent.example/a", "http://10.0.0.1#@agent.example/rpc", "JSONRPC", False),
        ("http://agent.example/a", "agent.example:50051", "GRPC", True),
        ("http://agent.example/a", "https://agent.example", "GRPC", True),
        ("http://agent.example/a", "10.0.0.1:50051", "GRPC", False),
        ("http://agent.example/a", "unix:/run/some.sock", "GRPC", False),
        ("http://agent.example/a", "dns://agent.example/10.0.0.1:50051", "GRPC", False),
        ("http://agent.example/a", "ipv4:10.0.0.1:50051,agent.example:1", "GRPC", False),
        ("http://127.0.0.1:8000", "http://localhost:9000/rpc", "JSONRPC", True),
        ("http://127.0.0.1:8000", "dns:///[::1]:9000", "GRPC", True),
        ("http://127.0.0.1:8000", "http://169.254.169.254/rpc", "JSONRPC", False),
    ],
)
def test_an_interface_at_another_host_is_used_if_it_is_permitted(
    url: str, interface: str, binding: str, is_used: bool
) -> None:
    untrusted_card = card("untrusted")
    untrusted_card.supported_interfaces.add(url=interface, protocol_binding=binding, protocol_version="1.0")

    def uses_interface(hosts: Collection[str]) -> bool:
        usable_card = Transports(url, (), (), hosts=hosts).usable_card(untrusted_card)
        return len(usable_card.supported_interfaces) == 1

    assert uses_interface(()) is is_used
    assert uses_interface(["other.example"]) is is_used
    assert uses_interface("*")
    if host := host_of(interface):
        assert uses_interface([host])


@pytest.mark.parametrize(
    ("arguments", "interface", "obstacle"),
    [
        ({"transports": ["GRPC"]}, ("JSONRPC", "1.0", "http://127.0.0.1/"), "the binding is not one of GRPC"),
        ({}, ("SOAP", "1.0", "http://127.0.0.1/"), "the binding is not one of JSONRPC, HTTP+JSON, GRPC"),
        ({}, ("JSONRPC", "0.2", "http://127.0.0.1/"), "the protocol version '0.2' is not supported"),
        ({}, ("JSONRPC", "one", "http://127.0.0.1/"), "the protocol version 'one' is not supported"),
        (
            {"tenant": "acme"},
            ("JSONRPC", "0.3", "http://127.0.0.1/"),
            "protocol 0.3 cannot carry the tenant 'acme'",
        ),
        ({"tenant": "a?"}, ("HTTP+JSON", "1.0", "http://127.0.0.1/"), "a path cannot carry the tenant 'a?'"),
        ({"hosts": "*"}, ("JSONRPC", "1.0", "ftp://x/"), "the address is not a valid URL"),
        ({"hosts": "*"}, ("GRPC", "1.0", "http://x:99999"), "the address is not a valid URL"),
        ({}, ("JSONRPC", "1.0", "http://10.0.0.1/"), "the host is not localhost (see the argument hosts)"),
    ],
)
async def test_the_error_names_the_obstacle_of_each_interface(
    arguments: dict[str, Any], interface: tuple[str, str, str], obstacle: str
) -> None:
    binding, version, url = interface
    unusable_card = card("odd")
    unusable_card.supported_interfaces.add(url=url, protocol_binding=binding, protocol_version=version)
    unusable_card.supported_interfaces.add(url="\n", protocol_binding="SOAP", protocol_version="1.0")
    async with RemoteAgent("http://127.0.0.1:1", card=unusable_card, **arguments) as agent:
        with pytest.raises(NoTransport) as refusal:
            await agent.get("t")
    bindings = ", ".join(arguments.get("transports", ["JSONRPC", "HTTP+JSON", "GRPC"]))
    assert str(refusal.value) == (
        f"no interface in the card of 'odd' is usable: {binding!r} at {url!r}: {obstacle}; "
        f"'SOAP' at '\\n': the binding is not one of {bindings}"
    )


async def test_the_error_names_some_of_many_interfaces() -> None:
    large_card = card("large")
    for number in range(100):
        large_card.supported_interfaces.add(url=f"http://10.0.0.{number}/", protocol_binding="JSONRPC")
    async with RemoteAgent("http://127.0.0.1:1", card=large_card) as agent:
        with pytest.raises(NoTransport, match=r"http://10.0.0.4/'.*; 95 more$"):
            await agent.get("t")


async def test_an_interface_of_an_unknown_version_hides_no_other(states: str) -> None:
    mixed_card = card("mixed")
    mixed_card.supported_interfaces.add(url=states, protocol_binding="HTTP+JSON", protocol_version="0.2")
    mixed_card.supported_interfaces.add(url=f"{states}/", protocol_binding="JSONRPC", protocol_version="1.0")
    async with RemoteAgent(states, card=mixed_card) as agent:
        assert (await agent.session().send("COMPLETED")).state_name == "COMPLETED"


async def test_no_request_is_sent_to_another_host(states: str) -> None:
    untrusted_card = card("untrusted")
    untrusted_card.supported_interfaces.add(url="http://192.0.2.1/", protocol_binding="JSONRPC")
    async with RemoteAgent(states, card=untrusted_card) as agent:
        with pytest.raises(NoTransport, match=r"the host is not localhost \(see the argument hosts\)"):
            await agent.session().send("COMPLETED")
    with pytest.raises(ConfigError, match=r"hosts = 'api.example'"):
        RemoteAgent(states, hosts="api.example")


@pytest.mark.parametrize("url", ["/rpc", "", "ftp://x/", "http://", "http://x:99999/", "http://[x"])
async def test_an_interface_without_a_usable_address_is_passed_over(states: str, url: str) -> None:
    odd_card = card("odd")
    odd_card.supported_interfaces.add(url=url, protocol_binding="JSONRPC", protocol_version="1.0")
    async with RemoteAgent(states, card=odd_card) as agent:
        for call in (agent.session().send("COMPLETED"), agent.get("t"), agent.session(Session("c", "t")).wait()):
            with pytest.raises(NoTransport, match="the address is not a valid URL"):
                await call

    odd_card.supported_interfaces.add(url=f"{states}/", protocol_binding="JSONRPC", protocol_version="1.0")
    async with RemoteAgent(states, card=odd_card) as agent:
        assert (await agent.session().send("COMPLETED")).state_name == "COMPLETED"


class TestTenants:
    @pytest.mark.parametrize(
        ("interfaces", "expected"),
        [
            ([("JSONRPC", "1.0", "")], "acme"),
            ([("JSONRPC", "1.0", "other")], "acme"),  # all interfaces have a tenant: a default
            ([("GRPC", "1.0", "echo"), ("JSONRPC", "1.0", "")], "echo/acme"),  # the port is shared by several agents
        ],
    )
    def test_the_tenant_replaces_the_card_s_or_follows_its_agent(
        self, interfaces: list[tuple[str, str, str]], expected: str
    ) -> None:
        usable_card = Transports("http://127.0.0.1", [], [], tenant="acme").usable_card(with_interfaces(interfaces))
        assert usable_card.supported_interfaces[0].tenant == expected

    async def test_the_card_s_tenant_is_the_default(self) -> None:
        card_with_tenant = with_interfaces([("JSONRPC", "1.0", "other")])
        assert Transports("http://127.0.0.1", [], []).usable_card(card_with_tenant) is card_with_tenant

    @pytest.mark.parametrize(
        ("interfaces", "tenant"), [([("JSONRPC", "0.3", "")], "acme"), ([("HTTP+JSON", "1.0", "")], "../acme?")]
    )
    async def test_an_interface_without_the_tenant_is_not_used(
        self, interfaces: list[tuple[str, str, str]], tenant: str
    ) -> None:
        async with RemoteAgent("http://127.0.0.1:1", card=with_interfaces(interfaces), tenant=tenant) as agent:
            with pytest.raises(NoTransport, match="cannot carry the tenant"):
                await agent.get("t")

    @pytest.mark.parametrize("tenant", [7, False, "a\nb", "a" * 257])
    async def test_an_invalid_tenant_is_refused(self, tenant: Any) -> None:
        with pytest.raises(ConfigError, match="tenant"):
            RemoteAgent("http://127.0.0.1:1", tenant=tenant)
        with pytest.raises(ConfigError, match="tenant"):
            Remote("http://127.0.0.1:1", tenant=tenant)


def with_interfaces(interfaces: list[tuple[str, str, str]]) -> AgentCard:
    """Return a card with an interface for each binding, version and tenant."""
    agent_card = card("echo")
    del agent_card.supported_interfaces[:]
    for binding, version, tenant in interfaces:
        agent_card.supported_interfaces.add(
            url="http://127.0.0.1:1", protocol_binding=binding, protocol_version=version, tenant=tenant
        )
    return agent_card
