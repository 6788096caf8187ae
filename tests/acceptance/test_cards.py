"""Agent cards with the configured address of the gateway, or otherwise with the address of the request."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from a2a.types import AgentCard

from tests.support.clients.bindings import V1, ServedFleet, base_url, card_of, rpc, sdk_client, send, serve_fleet, texts
from tests.support.clients.credentials import API_KEYS, KEY_OF_ANN
from tests.support.processes.fleet import Gateway
from tests.support.waiting import LIMIT

WELL_KNOWN = "/.well-known/agent-card.json"
PUBLIC = "https://agents.example.com/fleet"


@pytest.fixture(scope="module")
def served_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedFleet]:
    with serve_fleet(tmp_path_factory.mktemp("fleet"), pool="threads") as served_fleet:
        yield served_fleet


@pytest.fixture(scope="module")
def public(served_fleet: ServedFleet) -> Gateway:
    """Gateway with a configured public address."""
    return served_fleet.fleet.gateway(grpc=True, A2A_PUBLIC_URL=PUBLIC, A2A_GRPC_PUBLIC_ADDRESS="grpc.example.com:443")


@pytest.fixture(scope="module")
def keyed(served_fleet: ServedFleet) -> Gateway:
    """Gateway that requires API keys."""
    return served_fleet.fleet.gateway(grpc=True, **API_KEYS)


def interfaces(card: AgentCard) -> set[tuple[str, str, str, str]]:
    return {(i.protocol_binding, i.protocol_version, i.url, i.tenant) for i in card.supported_interfaces}


async def test_a_card_leads_to_the_address_it_was_asked_at(served_fleet: ServedFleet) -> None:
    for agent in ("", "count"):
        url = base_url(served_fleet.gateway, agent)

        assert interfaces(await card_of(served_fleet.gateway, agent)) == {
            ("JSONRPC", "1.0", f"{url}/", ""),
            ("HTTP+JSON", "1.0", url, ""),
            ("GRPC", "1.0", served_fleet.gateway.grpc, agent),
            ("JSONRPC", "0.3", f"{url}/", ""),
            ("HTTP+JSON", "0.3", url, ""),
            *([] if agent else [("GRPC", "0.3", served_fleet.gateway.grpc, "")]),
        }


async def test_a_card_leads_to_the_public_address_if_there_is_one(public: Gateway) -> None:
    for agent, path in (("", ""), ("count", "/agents/count")):
        card = await card_of(public, agent)

        assert interfaces(card) == {
            ("JSONRPC", "1.0", f"{PUBLIC}{path}/", ""),
            ("HTTP+JSON", "1.0", f"{PUBLIC}{path}", ""),
            ("GRPC", "1.0", "grpc.example.com:443", agent),
            ("JSONRPC", "0.3", f"{PUBLIC}{path}/", ""),
            ("HTTP+JSON", "0.3", f"{PUBLIC}{path}", ""),
            *([] if agent else [("GRPC", "0.3", "grpc.example.com:443", "")]),
        }


def test_another_host_gets_another_address(served_fleet: ServedFleet) -> None:
    answer = httpx.get(f"{served_fleet.url}{WELL_KNOWN}", headers={"Host": "agents.internal:8080"}, timeout=LIMIT)

    urls = {i["url"] for i in answer.json()["supportedInterfaces"] if i["protocolBinding"] != "GRPC"}
    assert urls == {"http://agents.internal:8080/", "http://agents.internal:8080"}


async def test_an_extended_card_leads_where_the_public_one_does(served_fleet: ServedFleet, keyed: Gateway) -> None:
    public = served_fleet.fleet.gateway(
        grpc=True, A2A_PUBLIC_URL=PUBLIC, A2A_GRPC_PUBLIC_ADDRESS="grpc.example.com:443", **API_KEYS
    )
    for gateway in (keyed, public):
        extended_card = AgentCard()
        card_json = rpc(gateway, "GetExtendedAgentCard", agent="full", **KEY_OF_ANN)["result"]
        for interface in card_json["supportedInterfaces"]:
            extended_card.supported_interfaces.add(
                url=interface["url"],
                protocol_binding=interface["protocolBinding"],
                protocol_version=interface["protocolVersion"],
                tenant=interface.get("tenant", ""),
            )

        assert card_json["name"] == "full-extended"
        assert interfaces(extended_card) == interfaces(await card_of(gateway, "full"))


async def test_a_client_made_from_any_card_reaches_its_agent(served_fleet: ServedFleet) -> None:
    for agent, text in (("", "root"), ("echo", "echo"), ("sync-echo", "sync")):
        async with sdk_client(served_fleet.gateway, agent, "GRPC", streaming=False) as client:
            assert texts(await send(client, text)) == [text]


def test_a_card_that_has_not_changed_is_not_sent_again(served_fleet: ServedFleet) -> None:
    url = f"{served_fleet.url}/agents/count{WELL_KNOWN}"
    first = httpx.get(url, timeout=LIMIT)

    second_response = httpx.get(url, headers={"If-None-Match": first.headers["etag"]}, timeout=LIMIT)
    other = httpx.get(url, headers={"If-None-Match": '"another"'}, timeout=LIMIT)

    assert first.status_code == other.status_code == 200
    assert second_response.status_code == 304
    assert second_response.content == b""
    assert second_response.headers["etag"] == first.headers["etag"]
    assert "max-age" in first.headers["cache-control"]
    assert first.headers["content-type"].startswith("application/json")


def test_an_extended_card_that_has_not_changed_is_not_sent_again(keyed: Gateway) -> None:
    url, headers = f"{keyed.url}/agents/full/extendedAgentCard", V1 | KEY_OF_ANN
    first = httpx.get(url, headers=headers, timeout=LIMIT)
    second_response = httpx.get(url, headers=headers | {"If-None-Match": first.headers["etag"]}, timeout=LIMIT)
    other = httpx.get(url, headers=headers | {"If-None-Match": 'W/"another"'}, timeout=LIMIT)

    assert first.headers["cache-control"] == "private, max-age=60"
    assert (second_response.status_code, second_response.content) == (304, b"")
    assert (other.status_code, other.json()) == (200, first.json())


def test_a_card_has_the_time_of_its_last_change(served_fleet: ServedFleet) -> None:
    url = f"{served_fleet.url}/agents/count{WELL_KNOWN}"
    first = httpx.get(url, timeout=LIMIT)
    last_modified = first.headers["last-modified"]

    def get_card(**headers: str) -> httpx.Response:
        return httpx.get(url, headers={k.replace("_", "-"): v for k, v in headers.items()}, timeout=LIMIT)

    unmodified_response = get_card(If_Modified_Since=last_modified)
    assert (unmodified_response.status_code, unmodified_response.content) == (304, b"")
    for name in ("etag", "cache-control", "last-modified"):
        assert unmodified_response.headers[name] == first.headers[name]
    assert get_card(If_Modified_Since="Fri, 01 Jan 2100 00:00:00 GMT").status_code == 304
    assert get_card(If_Modified_Since="Sat, 01 Jan 2000 00:00:00 GMT").status_code == 200
    assert get_card(If_Modified_Since="lately").status_code == 200
    assert get_card(If_Modified_Since=last_modified, If_None_Match='"another"').status_code == 200
    unchanged_response = get_card(
        If_Modified_Since="Sat, 01 Jan 2000 00:00:00 GMT", If_None_Match=first.headers["etag"]
    )
    assert unchanged_response.status_code == 304
    assert unchanged_response.headers["last-modified"] == last_modified


def test_json_rpc_is_served_with_and_without_the_slash(served_fleet: ServedFleet) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {}}
    for url in (
        f"{served_fleet.url}",
        f"{served_fleet.url}/",
        f"{served_fleet.url}/agents/count",
        f"{served_fleet.url}/agents/count/",
    ):
        answer = httpx.post(url, json=body, headers={"A2A-Version": "1.0"}, timeout=LIMIT)

        assert answer.status_code == 200, url
        assert "tasks" in answer.json()["result"]


def test_the_version_may_come_as_a_parameter_of_the_query(served_fleet: ServedFleet) -> None:
    assert httpx.get(f"{served_fleet.url}/tasks?A2A-Version=1.0", timeout=LIMIT).status_code == 200
    assert httpx.get(f"{served_fleet.url}/tasks?A2A-Version=2.0", timeout=LIMIT).status_code == 400
    response = httpx.get(f"{served_fleet.url}/tasks?A2A-Version=1.0", headers={"A2A-Version": "2.0"}, timeout=LIMIT)
    assert response.status_code == 400
