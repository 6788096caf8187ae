"""Sections of docs/reference/http-api.md that are generated from the OpenAPI document: operations and messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from a2a_celery.gateway.openapi.document import EVENT_STREAM, TENANT, openapi_document

MARKER = "<!-- generated: http api -->"
VERBS = ("get", "post", "delete")
SHARED_PARAMETERS = ("Version", "Extensions")
"""Parameters of every operation, which the page describes once."""


def with_operations(markdown: str) -> str:
    """Return the page with the operations and the messages in place of `MARKER`."""
    return markdown.replace(MARKER, "\n".join(_lines(openapi_document("", ["agent"]))))


def _lines(document: dict[str, Any]) -> Iterator[str]:
    yield from ("## Operations", "")
    for path, item in document["paths"].items():
        if not path.startswith(TENANT):
            for verb in VERBS:
                if verb in item:
                    yield from _operation(path, verb, item, document["components"])
    yield from ("## Errors", "", "| status | reasons |", "| --- | --- |")
    for code, response in document["components"]["responses"].items():
        yield f"| {code} | {response['description'].removeprefix('Reasons: ').removesuffix('.')} |"
    yield from ("", "## Messages", "")
    for name, schema in sorted(document["components"]["schemas"].items()):
        yield from _message(name, schema)


def _operation(path: str, verb: str, item: dict[str, Any], components: dict[str, Any]) -> Iterator[str]:
    operation = item[verb]
    yield from (f"### {operation['operationId']}", "", operation["summary"], "")
    yield from ("```http", f"{verb.upper()} {path}", "```", "")
    parameters = [
        components["parameters"][parameter["$ref"].rpartition("/")[2]] if "$ref" in parameter else parameter
        for parameter in operation.get("parameters", [])
        if parameter.get("$ref", "").rpartition("/")[2] not in SHARED_PARAMETERS
    ]
    if parameters:
        yield from ("| parameter | in | value |", "| --- | --- | --- |")
        for parameter in parameters:
            required = ", required" if parameter.get("required") else ""
            yield f"| `{parameter['name']}` | {parameter['in']}{required} | {_value(parameter['schema'])} |"
        yield ""
    if "requestBody" in operation:
        [schema, *_] = [content["schema"] for content in operation["requestBody"]["content"].values()]
        yield from (f"Body: {_value(schema)}", "")
    for status, response in operation["responses"].items():
        if "$ref" not in response:
            kinds = [_content(name, content["schema"]) for name, content in response.get("content", {}).items()]
            yield f"- {status}: {'; '.join(kinds) or response['description']}"
    yield ""


def _content(media_type: str, schema: dict[str, Any]) -> str:
    each = "events, each an " if media_type == EVENT_STREAM else ""
    return f"{each}{_value(schema)} (`{media_type}`)"


def _message(name: str, schema: dict[str, Any]) -> Iterator[str]:
    yield from (f"### {name}", "")
    if "enum" in schema:
        yield from (f"One of {', '.join(f'`{value}`' for value in schema['enum'])}.", "")
        return
    if "description" in schema:
        yield from (schema["description"], "")
    required = schema.get("required", [])
    yield from ("| field | value |", "| --- | --- |")
    for field, value in schema["properties"].items():
        yield f"| `{field}`{' (required)' if field in required else ''} | {_value(value)} |"
    if "oneOf" in schema:
        names = [f"`{choice['required'][0]}`" for choice in schema["oneOf"]]
        yield from ("", f"Exactly one of {', '.join(names)}.")
    yield ""


def _value(schema: dict[str, Any]) -> str:
    """Return a description of a schema in Markdown, with links to other messages."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(map(_value, schema["anyOf"]))
    kind = schema.get("type")
    if kind == "array":
        return f"list of {_value(schema['items'])}"
    if kind == "object" and "additionalProperties" in schema:
        return f"object whose values are {_value(schema['additionalProperties'])}"
    if kind == "object" and "properties" in schema:
        fields = [f"`{name}`: {_value(value)}" for name, value in schema["properties"].items()]
        return f"object with {'; '.join(fields)}"
    if "contentSchema" in schema:
        return f"JSON text of {_value(schema['contentSchema'])}"
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if kind is None:
        return "JSON value"
    words = [" or ".join(kind) if isinstance(kind, list) else kind]
    words += [schema[key] for key in ("format", "contentEncoding") if key in schema]
    bounds = {"minimum": "at least", "maximum": "at most", "maxLength": "at most"}
    limits = [f"{word} {schema[key]}" for key, word in bounds.items() if key in schema]
    unit = " characters" if "maxLength" in schema else ""
    return " ".join(words) + (f" ({', '.join(limits)}{unit})" if limits else "")
