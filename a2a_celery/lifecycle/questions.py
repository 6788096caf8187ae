"""JSON Schemas of answers to questions: their form in a message, and their limits.

A question contains its schema as a data part with the media type `SCHEMA_MEDIA_TYPE` and the metadata key
`ANSWER_SCHEMA`. ``answers`` validates answers.

Source: JSON Schema 2020-12, https://json-schema.org/draft/2020-12/json-schema-core.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any
from urllib.parse import quote

from a2a.helpers import new_data_part
from a2a.types import Part
from google.protobuf.json_format import MessageToDict
from pydantic import StringConstraints, TypeAdapter
from pydantic_core import SchemaError

from .json_values import MAX_EXACT, MAX_VALUE_DEPTH, inexact_place, portable_text
from .own_metadata import NAMESPACE

SCHEMA_MEDIA_TYPE = "application/schema+json"
"""Media type of the data part that contains the schema."""

ANSWER_SCHEMA = NAMESPACE + "answer_schema"
"""Metadata key, with the value true, of the data part that contains the schema."""

PROPERTY_ORDER = "propertyOrder"
"""Keyword of a property with its position in a form, from 1. A data part does not preserve the order of the keys."""

DIALECT = "https://json-schema.org/draft/2020-12/schema"

MAX_SCHEMA_BYTES = 65_536
"""Maximum size of a schema as JSON, in bytes."""

MAX_DEPTH = MAX_VALUE_DEPTH // 3
"""Maximum depth of nested objects and lists in a schema or an answer, so that a data part can contain it."""

MAX_TEXT = 300
"""Maximum length of the text of a violation, in characters. The text may contain parts of the answer."""

_SCHEMAS_BY_NAME = frozenset({"properties", "$defs", "definitions", "dependentSchemas"})
_SCHEMA_LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_SINGLE_SCHEMAS = frozenset(
    {"additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then"}
    | {"unevaluatedItems", "unevaluatedProperties"}
)
_REFUSED = frozenset({"$anchor", "$dynamicAnchor", "$dynamicRef", "$id", "$recursiveRef", "$vocabulary"})
"""Keywords that change the base URI, the name or the vocabulary of a schema. These keywords are refused, because
references in a question's schema must stay within the schema."""


@dataclass(frozen=True, slots=True)
class Question:
    """Question for `Turn.ask_all`.

    Attributes:
        text: Text of the question.
        schema: Type of the answer: a Pydantic model, any other type that Pydantic validates, or a JSON Schema. None for
            an answer that is text.
    """

    text: str
    schema: Any = None


@dataclass(frozen=True, slots=True)
class Violation:
    """Rule of a schema that an answer breaks.

    Attributes:
        path: Path in the answer, such as ``.guests[0].name``, or "" for the answer itself.
        text: Sentence that tells the client the rule.
    """

    path: str
    text: str


def is_schema_part(part: Part) -> bool:
    """Return True if `part` contains the schema of the answer."""
    return part.HasField("data") and ANSWER_SCHEMA in part.metadata and part.metadata[ANSWER_SCHEMA] is True


def schema_part(schema: Mapping[str, Any]) -> Part:
    """Return a data part that contains the schema of the answer."""
    part = new_data_part(schema, media_type=SCHEMA_MEDIA_TYPE)
    part.metadata.update({ANSWER_SCHEMA: True})
    return part


def schema_in(parts: Iterable[Part]) -> dict[str, Any] | None:
    """Return the schema in the parts of a question, or None if the parts contain no schema."""
    for part in parts:
        if is_schema_part(part):
            schema = whole_numbers(MessageToDict(part.data))
            return schema if isinstance(schema, dict) else None
    return None


def whole_numbers(value: Any) -> Any:
    """Return the JSON `value` with whole floats converted to integers, because A2A transfers every number as a
    float."""
    match value:
        case float() if value.is_integer() and abs(value) <= MAX_EXACT:
            return int(value)
        case dict():
            return {key: whole_numbers(inner) for key, inner in value.items()}
        case list():
            return [whole_numbers(inner) for inner in value]
        case _:
            return value


def depth_exceeds(value: Any, depth: int = MAX_DEPTH) -> bool:
    """Return True if objects and lists in `value` are nested deeper than `depth` levels."""
    level = [value]
    for _ in range(depth + 1):
        level = [inner for outer in level for inner in _inner_values(outer)]
    return bool(level)


def _inner_values(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


def subschemas(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield `schema` and all schemas in it, except in the values of ``enum``, ``default`` and similar keywords."""
    if not isinstance(schema, dict):
        return
    yield schema
    for keyword, value in list(schema.items()):
        if keyword in _SINGLE_SCHEMAS:
            yield from subschemas(value)
        elif keyword in _SCHEMA_LISTS and isinstance(value, list):
            for inner in value:
                yield from subschemas(inner)
        elif keyword in _SCHEMAS_BY_NAME and isinstance(value, dict):
            for inner in value.values():
                yield from subschemas(inner)


def checked_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Check that `schema` is allowed in a question, and return a copy with `PROPERTY_ORDER` in the properties of the
    outermost object.

    This function does not check that `schema` is a JSON Schema; see `answers.require_valid_schema`.

    Raises:
        ValueError: `schema` is not JSON, uses a different dialect, is too large or too deep, or contains a keyword,
            reference or pattern that questions refuse.
    """
    if depth_exceeds(schema):
        raise ValueError(f"the schema of a question is nested deeper than {MAX_DEPTH} levels: make it flatter")
    try:
        text = portable_text(json.dumps(schema, allow_nan=False, ensure_ascii=False))
    except (TypeError, ValueError) as e:
        raise ValueError(f"the schema of a question is not JSON: {e}") from None
    if (size := len(text.encode())) > MAX_SCHEMA_BYTES:
        raise ValueError(
            f"the schema of a question has {size} bytes, more than the maximum of {MAX_SCHEMA_BYTES}: make it smaller"
        )
    copy: dict[str, Any] = json.loads(text)
    if str(copy.get("$schema", DIALECT)).rstrip("#") != DIALECT:
        raise ValueError(f"the schema of a question must be JSON Schema 2020-12: remove $schema or set it to {DIALECT}")
    for part in subschemas(copy):
        _check_keywords(part)
    _number_properties(copy)
    return copy


def _check_keywords(schema: dict[str, Any]) -> None:
    if refused_keywords := sorted(_REFUSED & schema.keys()):
        raise ValueError(f"the schema of a question uses {refused_keywords[0]}: remove it, and use $ref with #/$defs/…")
    if "patternProperties" in schema:
        raise ValueError("the schema of a question uses patternProperties: use properties or additionalProperties")
    reference = schema.get("$ref", "#")
    if not isinstance(reference, str) or not reference.startswith("#"):
        raise ValueError(
            f"$ref {reference!r} in the schema of a question must begin with #, to refer to the same schema"
        )
    for keyword in ("const", "default", "enum"):
        if inexact_place(schema.get(keyword)) is not None:
            raise ValueError(
                f"{keyword} in the schema of a question has a whole number beyond 2^53 - 1, which A2A cannot represent "
                "exactly: use texts"
            )
    pattern = schema.get("pattern", "")
    if not isinstance(pattern, str):
        raise ValueError(f"the pattern {pattern!r} in the schema of a question is refused: it is not a string")
    compiled_pattern(pattern)


@lru_cache(maxsize=256)
def compiled_pattern(pattern: str) -> TypeAdapter[str]:
    """Return a validator for strings that contain a match of `pattern`.

    Pydantic compiles the pattern with Rust's regex crate, which has neither look-around nor backreferences. A match
    therefore takes linear time in the length of the string.

    Raises:
        ValueError: `pattern` is not a regular expression of the regex crate, or is too large.
    """
    try:
        return TypeAdapter(Annotated[str, StringConstraints(pattern=pattern)])
    except (SchemaError, TypeError) as e:
        reason = str(e).strip().splitlines()[-1].removeprefix("error: ")
        raise ValueError(
            f"the pattern {str(pattern)[:100]!r} in the schema of a question is refused: {reason}"
        ) from None


def _is_pattern(pattern: str) -> bool:
    try:
        compiled_pattern(pattern)
    except ValueError:
        return False
    return True


def _number_properties(schema: dict[str, Any]) -> None:
    """Add `PROPERTY_ORDER` to the properties of the outermost object."""
    definitions, reference = schema.get("$defs"), schema.get("$ref", "")
    target = (
        definitions.get(reference.removeprefix("#/$defs/")) if reference and isinstance(definitions, dict) else schema
    )
    properties = target.get("properties") if isinstance(target, dict) else None
    if not isinstance(properties, dict):
        return
    for position, schema_of_property in enumerate(properties.values(), 1):
        if isinstance(schema_of_property, dict):
            schema_of_property.setdefault(PROPERTY_ORDER, position)


def type_schema(adapter: TypeAdapter[Any]) -> dict[str, Any]:
    """Return the JSON Schema of a type, without ``patternProperties`` and without patterns that `compiled_pattern`
    refuses, such as the pattern of ``Decimal``.

    The omitted rules still apply, because the worker validates the answer against the type itself.
    """
    schema = deepcopy(adapter.json_schema())
    for part in subschemas(schema):
        if "pattern" in part and not _is_pattern(part["pattern"]):
            del part["pattern"]
        if part.pop("patternProperties", None) is not None:
            part.pop("additionalProperties", None)
    return schema


def combined_schema(questions: Mapping[str, tuple[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """Return the schema of an object with one required property for each of several questions.

    Args:
        questions: Text and schema of each question by its key.
    """
    properties = {}
    for key, (text, schema) in questions.items():
        inner = deepcopy(dict(schema))
        _move_references(inner, f"#/properties/{quote(key.replace('~', '~0').replace('/', '~1'), safe='~')}")
        properties[key] = {**inner, **({"description": text} if text else {})}
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _move_references(schema: dict[str, Any], base: str) -> None:
    for part in subschemas(schema):
        if isinstance(reference := part.get("$ref"), str) and reference.startswith("#"):
            part["$ref"] = base + reference[1:]
