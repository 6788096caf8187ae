"""OpenAPI document of the HTTP+JSON binding, generated from the routes of the binding and from the descriptors of the
SDK's protobuf messages.

Source: OpenAPI 3.1; A2A specification 11 (HTTP+JSON binding); the HTTP rules of ``a2a.proto``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from a2a.extensions.common import HTTP_EXTENSION_HEADER
from a2a.types import AgentCard, SendMessageRequest, TaskPushNotificationConfig, a2a_pb2
from a2a.utils.constants import (
    A2A_JSON_MEDIA_TYPE,
    AGENT_CARD_WELL_KNOWN_PATH,
    PROTOCOL_VERSION_1_0,
    VERSION_HEADER,
)
from a2a.utils.errors import A2A_ERROR_MAPPING
from google.api import annotations_pb2

from ...features.operations import OPERATIONS as FEATURE_OPERATIONS
from ..auth.schemes import Scheme
from ..bindings.rest import REST_OPERATIONS, RestOperation
from ..operations.validation import BOUNDS
from ..protocol_errors import HEADER
from .extra_operations import EXTRA_OPERATIONS, SCHEMAS
from .schemas import COMPONENTS, Schema, field_schema, message_schema, reference, schemas_of

VERSION = "3.1.0"
TITLE = "A2A agents over HTTP+JSON"
TENANT = "/{tenant}"
"""Prefix of a path whose first segment is the tenant."""

CATALOG_PATH = "/agents"
CATALOG_MEDIA_TYPE = "application/ai-catalog+json"

JSON = "application/json"
EVENT_STREAM = "text/event-stream"

SUMMARIES = {
    "SendMessage": "Send a message. Wait until the task ends or asks a question, unless `returnImmediately` is set.",
    "SendStreamingMessage": "Send a message, and follow the events of its task.",
    "GetTask": "Return a task.",
    "ListTasks": "Return a page of the caller's tasks, newest status first.",
    "CancelTask": "Cancel a task.",
    "SubscribeToTask": "Follow a task. Status 204: all events were received.",
    "GetExtendedAgentCard": "Return the card for authenticated callers.",
    **{operation.name: operation.summary for operation in FEATURE_OPERATIONS if not operation.response},
}
"""Descriptions of the operations of A2A."""

REST: dict[tuple[str, str], Any] = {
    (verb, getattr(rule, verb.lower()).replace("=*", "")): method
    for method in a2a_pb2.DESCRIPTOR.services_by_name["A2AService"].methods
    for rule in [method.GetOptions().Extensions[annotations_pb2.http]]
    for verb in [rule.WhichOneof("pattern").upper()]
}
"""Methods of A2A by HTTP method and path. Every path exists a second time with the prefix `TENANT`."""

_COPY_OR_HOST: dict[str, Schema] = {
    "304": {"description": "The copy of the client is current."},
    "403": {"$ref": "#/components/responses/403"},
}
"""Further responses of public documents. A gateway without authentication refuses unknown hosts."""

STREAM_EVENT: Schema = {
    "type": "object",
    "description": "A server-sent event.",
    "properties": {
        "id": {"type": "string", "description": "The id to send as Last-Event-ID."},
        "data": {
            "type": "string",
            "contentMediaType": JSON,
            "contentSchema": {
                "anyOf": [{"$ref": f"{COMPONENTS}{name}"} for name in ("StreamResponse", "Error")],
            },
        },
    },
    "required": ["data"],
}
"""Schema of each event of a stream. An Error is the last event of its stream."""

ERROR_SCHEMAS: dict[str, Schema] = {
    "Error": {
        "type": "object",
        "description": "An error in the form of google.rpc.Status (A2A specification 11.6).",
        "properties": {
            "error": {
                "type": "object",
                "properties": {
                    "code": {"type": "integer", "description": "The HTTP status."},
                    "status": {"type": "string", "description": "The gRPC status."},
                    "message": {"type": "string"},
                    "details": {"type": "array", "items": {"$ref": f"{COMPONENTS}ErrorDetail"}},
                },
                "required": ["code", "status", "message"],
            }
        },
        "required": ["error"],
    },
    "ErrorDetail": {
        "type": "object",
        "description": "A google.rpc.ErrorInfo with the reason, a google.rpc.BadRequest or a google.rpc.RetryInfo.",
        "properties": {
            "@type": {"type": "string"},
            "reason": {"type": "string"},
            "domain": {"type": "string"},
            "metadata": {"type": "object", "additionalProperties": {"type": "string"}},
        },
        "required": ["@type"],
    },
}


def openapi_document(base_url: str, agents: Sequence[str], schemes: Sequence[Scheme] = ()) -> dict[str, Any]:
    """Return the OpenAPI document of a gateway.

    Args:
        base_url: Base URL that the client uses, without a trailing slash.
        agents: Names of the agents. The first agent is also served at the base URL.
        schemes: Authentication schemes of the gateway.
    """
    variable = {"enum": list(agents), "default": agents[0]}
    document: dict[str, Any] = {
        "openapi": VERSION,
        "info": {
            "title": TITLE,
            "version": PROTOCOL_VERSION_1_0,
            "description": "The HTTP+JSON binding of A2A. All agents have the same paths.",
        },
        "servers": [
            {"url": f"{base_url}/agents/{{agent}}", "description": "An agent.", "variables": {"agent": variable}},
            {"url": base_url, "description": "The agent that the tenant names. Otherwise, the first agent."},
        ],
        "paths": _paths(has_schemes=bool(schemes)) | {CATALOG_PATH: _catalog_item(base_url, has_schemes=bool(schemes))},
        "components": _components(has_schemes=bool(schemes)),
    }
    if schemes:
        document["components"]["securitySchemes"] = {scheme.name: _security_scheme(scheme) for scheme in schemes}
        document["security"] = [{scheme.name: []} for scheme in schemes]
    return document


def _paths(*, has_schemes: bool) -> dict[str, dict[str, Any]]:
    """Return the path items: the card, and each operation without and with the prefix `TENANT`."""
    card = {
        "operationId": "GetAgentCard",
        "summary": "Return the public card of the agent.",
        "parameters": [_parameter("query", VERSION_HEADER, {"type": "string"})],
        "security": [],
        "responses": {
            "200": _response("The card.", JSON, reference(AgentCard.DESCRIPTOR)),
            **_COPY_OR_HOST,
        },
    }
    paths: dict[str, dict[str, Any]] = {AGENT_CARD_WELL_KNOWN_PATH: {"get": card}}
    for prefix in ("", TENANT):
        for operation in REST_OPERATIONS:
            for verb in operation.verbs:
                path = prefix + _json_path(operation)
                paths.setdefault(path, {})[verb.lower()] = _operation(operation, verb, prefix, has_schemes)
    return paths


def _catalog_item(base_url: str, *, has_schemes: bool) -> dict[str, Any]:
    operation = {
        "operationId": "ListAgents",
        "summary": "Return the agents of the gateway, with the addresses of their cards.",
        "tags": ["Extra"],
        "responses": {
            "200": _response("An AI Catalog.", CATALOG_MEDIA_TYPE, {"$ref": f"{COMPONENTS}Catalog"}),
            **_COPY_OR_HOST,
            **({"401": {"$ref": "#/components/responses/401"}} if has_schemes else {}),
        },
    }
    return {"servers": [{"url": base_url, "description": "The gateway."}], "get": operation}


def _path(operation: RestOperation) -> str:
    """Return the path of an operation without converters, such as in ``{id:path}``."""
    return re.sub(r":path}", "}", operation.path)


def _json_path(operation: RestOperation) -> str:
    """Return the path of an operation with the JSON names of its parameters."""
    return re.sub(r"{(\w+)}", lambda match: f"{{{_json_name(operation, match[1])}}}", _path(operation))


def _json_name(operation: RestOperation, name: str) -> str:
    field = operation.kind.DESCRIPTOR.fields_by_name.get(name)
    return name if field is None else str(field.json_name)


def _operation(operation: RestOperation, verb: str, prefix: str, has_schemes: bool) -> dict[str, Any]:
    key = verb, _path(operation)
    method: Any = REST.get(key)
    extra = EXTRA_OPERATIONS.get(key)
    name = method.name if extra is None else extra.name
    result: dict[str, Any] = {
        "operationId": f"{name}{'InTenant' if prefix else ''}",
        "summary": extra.summary if extra else SUMMARIES[name],
        "tags": ["A2A" if method else "Extra"],
        "parameters": list(_parameters(operation, verb, prefix, is_stream=_is_stream(method, extra))),
        "responses": _responses(method, extra, verb, has_schemes),
    }
    body = _body(operation, method, extra)
    if body:
        result["requestBody"] = body
    return result


def _is_stream(method: Any, extra: Any) -> bool:
    return extra.response == "" if extra else bool(method.server_streaming)


def _parameters(operation: RestOperation, verb: str, prefix: str, *, is_stream: bool) -> Iterator[Schema]:
    """Yield the parameters of an operation. The fields of a POST request are in its body."""
    names = re.findall(r"{(\w+)}", _path(operation))
    if prefix:
        yield _parameter("path", "tenant", _bounded("tenant", {"type": "string"}))
    for name in names:
        yield _parameter("path", _json_name(operation, name), _bounded(name, {"type": "string", "minLength": 1}))
    if verb != "POST":
        for field in operation.kind.DESCRIPTOR.fields:
            if field.name not in names and not (prefix and field.name == "tenant"):
                yield _parameter("query", field.json_name, _bounded(field.name, field_schema(field)))
    references = ["Version", "Extensions", *(["LastEventId"] if is_stream else [])]
    yield from ({"$ref": f"#/components/parameters/{name}"} for name in references)


def _bounded(name: str, schema: Schema) -> Schema:
    """Return `schema` with the bounds of the field `name` that the gateway checks."""
    if name == "page_size":
        return schema | {"minimum": 1, "maximum": 100}
    if name == "history_length":
        return schema | {"minimum": 0}
    return schema | {"maxLength": BOUNDS[name]} if name in BOUNDS else schema


def _parameter(place: str, name: str, schema: Schema, *, required: bool = False, description: str = "") -> Schema:
    parameter: Schema = {"name": name, "in": place, "schema": schema}
    if required or place == "path":
        parameter["required"] = True
    return parameter | ({"description": description} if description else {})


def _body(operation: RestOperation, method: Any, extra: Any) -> Schema | None:
    """Return the request body of a POST operation, or None if the operation has none."""
    if extra is not None:
        schema = {"$ref": f"{COMPONENTS}{extra.request}"} if extra.request else None
    elif method.GetOptions().Extensions[annotations_pb2.http].body:
        names = re.findall(r"{(\w+)}", _path(operation))
        kind = operation.kind.DESCRIPTOR
        schema = message_schema(kind, is_sent=True, without=names) if names else reference(kind)
    else:
        schema = None
    if schema is None:
        return None
    is_required = "$ref" in schema or "required" in schema
    return {"required": is_required, "content": {kind: {"schema": schema} for kind in (A2A_JSON_MEDIA_TYPE, JSON)}}


def _responses(method: Any, extra: Any, verb: str, has_schemes: bool) -> dict[str, Schema]:
    if _is_stream(method, extra):
        responses = {"200": _response("Server-sent events.", EVENT_STREAM, STREAM_EVENT)}
        if verb == "GET":
            responses["204"] = {"description": "All events were received: an EventSource stops reconnecting."}
    elif extra is not None:
        responses = {str(extra.status): _response("The result.", JSON, {"$ref": f"{COMPONENTS}{extra.response}"})}
    else:
        responses = {"200": _response("The result.", A2A_JSON_MEDIA_TYPE, reference(method.output_type))}
        if method.name == "GetExtendedAgentCard":
            responses["304"] = _COPY_OR_HOST["304"]
    return responses | {status: {"$ref": f"#/components/responses/{status}"} for status in _error_codes(has_schemes)}


def _response(description: str, media_type: str, schema: Schema) -> Schema:
    return {"description": description, "content": {media_type: {"schema": schema}}}


def _error_codes(has_schemes: bool) -> list[str]:
    codes = {mapping.http_code for mapping in A2A_ERROR_MAPPING.values()}
    return [str(code) for code in sorted(codes) if has_schemes or code != 401]


def _components(*, has_schemes: bool) -> dict[str, Any]:
    methods = REST.values()
    bodies = [SendMessageRequest.DESCRIPTOR, TaskPushNotificationConfig.DESCRIPTOR]
    types = schemas_of(bodies, [method.output_type for method in methods])
    return {
        "schemas": types | SCHEMAS | ERROR_SCHEMAS,
        "parameters": {
            "Version": _parameter(
                "header",
                VERSION_HEADER,
                {"type": "string", "enum": [PROTOCOL_VERSION_1_0]},
                required=True,
                description="The version of the protocol. A request without a version is a request for 0.3. "
                "The query may contain the version instead.",
            ),
            "Extensions": _parameter(
                "header",
                HTTP_EXTENSION_HEADER,
                {"type": "string"},
                description="URIs of extensions, separated by commas.",
            ),
            "LastEventId": _parameter(
                "header",
                "Last-Event-ID",
                {"type": "string", "pattern": r"^[1-9][0-9]{0,8}(-[0-9]{1,15})?$"},
                description="The id of the last event that the client has received.",
            ),
        },
        "responses": {code: _error_response(code) for code in _error_codes(has_schemes)},
    }


def _error_response(code: str) -> Schema:
    reasons = [mapping.reason for mapping in A2A_ERROR_MAPPING.values() if str(mapping.http_code) == code]
    response = _response(f"Reasons: {', '.join(reasons)}.", A2A_JSON_MEDIA_TYPE, {"$ref": f"{COMPONENTS}Error"})
    headers = {"401": "WWW-Authenticate", "429": HEADER}
    if code in headers:
        response["headers"] = {headers[code]: {"required": True, "schema": {"type": "string"}}}
    return response


def _security_scheme(scheme: Scheme) -> Schema:
    """Return a scheme of the gateway as OpenAPI describes it."""
    declared = scheme.security_scheme()
    match declared.WhichOneof("scheme"):
        case "api_key_security_scheme":
            key = declared.api_key_security_scheme
            return {"type": "apiKey", "in": key.location, "name": key.name}
        case "http_auth_security_scheme":
            http = declared.http_auth_security_scheme
            return {"type": "http", "scheme": http.scheme.lower(), "bearerFormat": http.bearer_format or "JWT"}
        case _:
            return {"type": "mutualTLS"}
