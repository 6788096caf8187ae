"""Hypothesis strategies for invalid requests: mutations of valid requests of every operation and binding.

Strategies replace, remove, nest and inflate values. They truncate, insert and wrongly encode bytes, and draw invalid
headers, methods, paths and queries. Some requests are followed by a second request, and some are incomplete.
"""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote_from_bytes

from google.protobuf.json_format import ParseDict
from google.protobuf.message import Message
from hypothesis import strategies as st

from tests.support.clients.faults import REQUESTS
from tests.support.hostile.samples import (
    CONTENT_TYPES,
    ELSEWHERE,
    GOOD,
    GOOD_03,
    GRPC_03,
    HEADERS,
    METADATA,
    OPERATOR_PATHS,
    OWN_PATHS,
    REST_03,
    SPLICED,
    STREAMS,
    VERBS,
)


@dataclass(frozen=True)
class Http:
    """HTTP request.

    Attributes:
        binding: Name of the binding and version.
        line: Bytes of the request.
        half: The request is truncated, and no response is expected.
        open_end: The request may announce more bytes than it has. The gateway may wait for the bytes.
    """

    binding: str
    line: bytes
    half: bool = False
    open_end: bool = False


@dataclass(frozen=True)
class Grpc:
    """gRPC call."""

    binding: str
    method: str
    body: bytes
    streams: bool
    metadata: tuple[tuple[str, str | bytes], ...] = ()


Request = Http | Grpc

AGENTS = ("/agents/echo", "/agents/ask", "/agents/approval", "/agents/asks-number", "/agents/steered")
"""Paths of agents that echo, ask, wait for a signal, ask with a schema, and read messages while they work."""

ENDLESS = {b"Content-Length", b"Transfer-Encoding", b"Expect", b"Upgrade"}
"""Headers that can make a gateway wait for more bytes."""

ODD_TEXTS = (
    "",
    "0",
    "\x00",
    "\ufeff",
    "\ud800",
    "\udfff\ud800",
    "\u202e",
    "a\u0300" * 40,
    "%00",
    "../..",
    "{}",
    "x" * 300,
)
text = st.one_of(st.sampled_from(ODD_TEXTS), st.text(st.characters(exclude_categories=[]), max_size=12))
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([-1, 2**31, 2**53 + 1, 2**70, 10**400, 1e308, -0.0]),
    st.floats(),
    text,
    st.sampled_from(["ROLE_USER", "TASK_STATE_WORKING", "9999-99-99T00:00:00Z"]),
)
values = st.one_of(
    scalars,
    st.recursive(
        scalars,
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(text, inner, max_size=3)),
        max_leaves=6,
    ),
)


class KnownIds:
    """Strategies for requests with ids of known tasks and configs, or with invalid ids."""

    def __init__(self, task_ids: Sequence[str]) -> None:
        self.ids = st.one_of(st.sampled_from([*task_ids, "t", "x" * 257]), text)

    def requests(self) -> st.SearchStrategy[Request]:
        """Draw a request over any binding."""
        return st.one_of(
            *(rpc(self.ids, version, template) for version, template in (("1.0", GOOD), ("0.3", GOOD_03))),
            rest(self.ids, "1.0", [(verb, path, GOOD[method]) for method, (_, verb, path) in REQUESTS.items()]),
            rest(self.ids, "0.3", REST_03),
            rest(self.ids, "1.0", OWN_PATHS),
            rest(self.ids, "1.0", OPERATOR_PATHS, places=("",)),
            other_request(),
            call(self.ids, "1.0", "lf.a2a.v1", {name: (REQUESTS[name][0], good) for name, good in GOOD.items()}),
            call(self.ids, "0.3", "a2a.v1", GRPC_03),
        )


@st.composite
def rpc(draw: st.DrawFn, ids: st.SearchStrategy[str], version: str, good: dict[str, dict[str, Any]]) -> Request:
    """Draw a JSON-RPC request."""
    method = draw(st.sampled_from(sorted(good)))
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": good[method]}
    value = draw(values) if _one_in(draw, 20) else mutated_copy(draw, body, ids)
    agents = ["/", "/", *(f"{place}/" for place in AGENTS), "/agents/ask", "/acme"]
    path = draw(st.sampled_from(agents))
    return _http(draw, f"JSON-RPC {version}", "POST", path, _unusual_json(draw, value), version)


@st.composite
def rest(
    draw: st.DrawFn,
    ids: st.SearchStrategy[str],
    version: str,
    templates: Sequence[tuple[str, str, Any]],
    places: Sequence[str] = ("", "", "", *AGENTS, "/acme", "/agents/nobody"),
) -> Request:
    """Draw an HTTP+JSON request to a path of `templates` below one of `places`."""
    verb, path, good = draw(st.sampled_from(templates))
    for name in ("{id}", "{taskId}", "{config}"):
        if name in path:
            path = path.replace(name, _json_string(draw(ids)))
    path = draw(st.sampled_from(places)) + path
    value = draw(values) if _one_in(draw, 20) else mutated_copy(draw, good, ids)
    body = b""
    if verb == "GET" and isinstance(value, dict):
        path += "?" + "&".join(f"{_json_string(name)}={_json_string(field)}" for name, field in value.items())
    if verb != "GET" or _one_in(draw, 10):
        body = _unusual_json(draw, value)
    if _one_in(draw, 15):
        verb = draw(st.sampled_from(VERBS))
    return _http(draw, f"HTTP+JSON {version}", verb, path, body, version)


@st.composite
def other_request(draw: st.DrawFn) -> Request:
    """Draw an HTTP request that belongs to no operation."""
    verb, path = draw(st.sampled_from(VERBS)), draw(st.sampled_from(ELSEWHERE))
    return _http(draw, "HTTP", verb, path, draw(st.binary(max_size=60)), draw(st.sampled_from(["1.0", "0.3"])))


@st.composite
def call(
    draw: st.DrawFn,
    ids: st.SearchStrategy[str],
    version: str,
    package: str,
    operations: dict[str, tuple[type[Message], dict[str, Any]]],
) -> Request:
    """Draw a gRPC call."""
    method = draw(st.sampled_from(sorted(operations)))
    kind, good = operations[method]
    try:
        body = ParseDict(mutated_copy(draw, good, ids), kind(), ignore_unknown_fields=True).SerializeToString()
    except Exception:  # protobuf raises many types, including SystemError
        body = ParseDict(good, kind()).SerializeToString()
    body = _bytes(draw, body)
    streams = method in STREAMS
    if _one_in(draw, 20):
        method, streams = draw(st.sampled_from(["Frobnicate", "", "send_message", "../GetTask", "GetTask"])), False
    metadata: list[tuple[str, str | bytes]] = [("a2a-version", version)]
    if _one_in(draw, 6):
        metadata = draw(st.lists(st.sampled_from(METADATA), max_size=4))
    return Grpc(f"gRPC {version}", f"/{package}.A2AService/{method}", body, streams, tuple(metadata))


def mutated_copy(draw: st.DrawFn, good: Any, ids: st.SearchStrategy[str]) -> Any:
    """Draw a copy of `good` with ids from `ids` and up to three mutated values."""
    root = {"root": copy.deepcopy(good)}
    for holder, key in list(_places(root)):
        if key in ("id", "taskId", "contextId", "name", "pageToken") and holder[key] in ("t", "c", "tasks/t", "x"):
            holder[key] = ("tasks/" if key == "name" else "") + draw(ids)
    for _ in range(draw(st.integers(0, 3))):
        holder, key = draw(st.sampled_from(list(_places(root))))
        match draw(st.integers(0, 9)):
            case 0 | 1 if holder is not root:
                del holder[key]
            case 2 if isinstance(holder, dict) and holder is not root:
                holder[draw(text)] = draw(values)
            case 3:
                depth = draw(st.sampled_from([30, 99, 101, 150, 3000]))
                for _ in range(depth):
                    holder[key] = [holder[key]] if depth % 2 else {"a": holder[key]}
            case 4:
                holder[key] = draw(st.sampled_from(["x", "\u4e2d", "\x00", '"'])) * draw(
                    st.sampled_from([300, 5000, 90_000])
                )
            case 5:
                holder[key] = [holder[key]] * draw(st.sampled_from([0, 2, 40]))
            case _:
                holder[key] = draw(values)
    return root["root"]


def _places(value: Any, depth: int = 0) -> Iterator[tuple[Any, Any]]:
    for key, inner in list(value.items() if isinstance(value, dict) else enumerate(value)):
        yield value, key
        if isinstance(inner, dict | list) and depth < 20:
            yield from _places(inner, depth + 1)


def _unusual_json(draw: st.DrawFn, value: Any) -> bytes:
    """Draw an encoding of `value` as JSON that may be unusual or invalid."""
    plain = draw(st.booleans())
    return _bytes(draw, _json(value, plain).encode("utf-8", "surrogatepass"))


def _json(value: Any, plain: bool) -> str:
    """Return JSON, even for deeply nested values and large numbers, which Python's encoder rejects."""
    fragments: list[str] = []
    remaining: list[Any] = [value]
    while remaining:
        match remaining.pop():
            case _Raw(text):
                fragments.append(text)
            case dict() as fields:
                inner: list[Any] = [_Raw("{")]
                for name, field in fields.items():
                    inner += [_Raw("," * (len(inner) > 1) + json.dumps(name, ensure_ascii=plain) + ":"), field]
                remaining += [*inner, _Raw("}")][::-1]
            case list() as items:
                inner = [_Raw("[")]
                for item in items:
                    inner += [_Raw("," * (len(inner) > 1)), item]
                remaining += [*inner, _Raw("]")][::-1]
            case int() as number if number > 2**70:
                fragments.append(f"1{'0' * 400}")
            case other:
                fragments.append(json.dumps(other, ensure_ascii=plain))
    return "".join(fragments)


@dataclass(frozen=True)
class _Raw:
    text: str


def _bytes(draw: st.DrawFn, body: bytes) -> bytes:
    """Draw `body`, corrupted about once in seven draws."""
    position = draw(st.integers(0, len(body)))
    match draw(st.integers(0, 55)):
        case 11:
            return body[:position]
        case 14:
            return body[:position] + draw(st.binary(min_size=1, max_size=4)) + body[position:]
        case 17:
            return b"\xef\xbb\xbf" + body
        case 20:
            return body[:position] + b"\xc0\xaf\x00" + body[position:]
        case 23:
            return body.decode("utf-8", "replace").encode("utf-16")
        case 26:
            return gzip.compress(body, 1)
        case 29:
            return body + body
        case 32:
            return draw(st.binary(max_size=80))
    return body


def _http(draw: st.DrawFn, binding: str, verb: str, path: str, body: bytes, version: str) -> Request:
    """Draw the bytes of the request, with valid or invalid headers."""
    headers = [(b"Host", b"127.0.0.1"), (b"A2A-Version", version.encode()), (b"Connection", b"close")]
    kind = draw(st.sampled_from(CONTENT_TYPES)) if _one_in(draw, 10) else b"application/json"
    headers += [(b"Content-Type", kind)] if body else []
    odd = draw(st.lists(st.sampled_from(HEADERS), max_size=2)) if _one_in(draw, 5) else []
    for name, choices in odd:
        if draw(st.booleans()):  # otherwise the request has the header twice
            headers = [header for header in headers if header[0] != name]
        headers.append((name, draw(st.sampled_from(choices))))
    if (body or verb == "POST") and not {b"Content-Length", b"Transfer-Encoding"} & {name for name, _ in headers}:
        headers.append((b"Content-Length", str(len(body)).encode()))
    target = path if path.startswith(("/", "http", "*")) else f"/{path}"
    line = b" ".join([verb.encode(), target.encode("utf-8", "surrogatepass"), b"HTTP/1.1"]) + b"\r\n"
    open_end = verb == "CONNECT" or bool(ENDLESS & {name for name, _ in odd})
    line += b"".join(b"%s: %s\r\n" % header for header in headers) + b"\r\n" + body
    match draw(st.integers(0, 29)):
        case 7:
            return Http(binding, line[: draw(st.integers(0, len(line)))], half=True)
        case 11:
            return Http(binding, line + SPLICED, open_end=open_end)
        case 13:
            http_version = draw(st.sampled_from([b"HTTP/1.0", b"HTTP/9.9", b"", b"\xff"]))
            return Http(binding, line.replace(b"HTTP/1.1", http_version, 1), open_end=True)
    return Http(binding, line, open_end=open_end)


def _one_in(draw: st.DrawFn, number: int) -> bool:
    """Draw True about once in `number` draws. The condition tests for an inner value, because Hypothesis prefers the
    ends of a range."""
    return bool(draw(st.integers(0, number)) == number // 2 + 1)


def _json_string(value: Any) -> str:
    text = value if isinstance(value, str) else _json(value, plain=True)
    return quote_from_bytes(text[:3000].encode("utf-8", "surrogatepass"), safe="")
