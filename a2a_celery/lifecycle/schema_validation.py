"""Validation of a JSON value against a JSON Schema, in bounded time.

Regular expressions take linear time, and the number of checked keywords is limited. References are never fetched.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from jsonschema import Draft202012Validator, validators
from jsonschema.exceptions import SchemaError
from jsonschema.exceptions import ValidationError as Broken
from pydantic import ValidationError
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from .questions import MAX_TEXT, Violation, compiled_pattern, subschemas

MAX_KEYWORDS = 50_000
"""Maximum number of keyword checks for one value. This number of checks takes about a second."""

MAX_NESTED = 128
"""Maximum number of keywords that are checked inside one another. Each takes about four frames of the stack."""

MAX_VIOLATIONS = 20
"""Maximum number of violations that are reported for one value."""


def violations_of(schema: Mapping[str, Any], value: Any) -> list[Violation]:
    """Return the rules of `schema` that the JSON `value` breaks, at most `MAX_VIOLATIONS`.

    If the validation exceeds `MAX_KEYWORDS`, `MAX_NESTED` or the maximum recursion depth, return a single violation,
    which says that the answer is too large.
    """
    validator = _validator_class()(schema, registry=Registry())
    violations: list[Violation] = []
    try:
        for error in validator.iter_errors(value):
            assert isinstance(error, Broken)
            violations.append(_violation(error))
            if len(violations) == MAX_VIOLATIONS:
                break
    except (_TooManyKeywords, RecursionError):
        return [Violation("", "The answer has too many values for its schema: send a smaller one.")]
    return list(dict.fromkeys(violations))


class _TooManyKeywords(Exception):
    """Error for a validation that exceeded `MAX_KEYWORDS` or `MAX_NESTED`."""


Keyword = Callable[[Any, Any, Any, Any], Iterator[Any] | None]
"""Function that checks a keyword and yields errors. The arguments are the validator, the value of the keyword, the
instance and the schema."""


def _validator_class() -> Any:
    """Return a new validator class that counts the keyword checks of all its instances."""
    count = nested = 0

    def count_checks(keyword: Keyword) -> Keyword:
        def check(*arguments: Any) -> Iterator[Any]:
            nonlocal count, nested
            count += 1
            if count > MAX_KEYWORDS or nested == MAX_NESTED:
                raise _TooManyKeywords
            nested += 1
            try:
                yield from keyword(*arguments) or ()
            finally:
                nested -= 1

        return check

    keywords = {**Draft202012Validator.VALIDATORS, "pattern": _pattern, "uniqueItems": _unique_items}
    return validators.extend(Draft202012Validator, {name: count_checks(keyword) for name, keyword in keywords.items()})


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[Any]:
    if not validator.is_type(instance, "string"):
        return
    try:
        compiled_pattern(pattern).validate_python(instance)
    except ValidationError:
        yield Broken(f"{instance!r} does not match {pattern!r}")


def _unique_items(validator: Any, unique: bool, instance: Any, schema: Any) -> Iterator[Any]:
    """Check ``uniqueItems`` in linear time. The jsonschema library takes quadratic time for arrays of objects."""
    if not unique or not validator.is_type(instance, "array"):
        return
    if len({json.dumps(item, sort_keys=True) for item in instance}) < len(instance):
        yield Broken("The items must be unique")


def _violation(error: Any) -> Violation:
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.absolute_path)
    match error.validator:
        case "required":
            missing = [name for name in error.validator_value if name not in error.instance]
            return Violation(path, f"Missing: {', '.join(missing)}."[:MAX_TEXT])
        case "additionalProperties" if error.validator_value is False:
            properties = error.schema.get("properties", {})
            unknown = sorted(set(error.instance) - set(properties))
            return Violation(path, f"Unknown: {', '.join(unknown)}. Known: {', '.join(properties)}."[:MAX_TEXT])
        case _:
            text = error.message.rstrip(".")
            if len(text) > MAX_TEXT:  # keep the end, because the rule follows the quoted value
                text = f"{text[: MAX_TEXT // 2]} … {text[-MAX_TEXT // 2 :]}"
            return Violation(path, f"{text}.")


def require_valid_schema(schema: Mapping[str, Any]) -> None:
    """Check that `schema` is a JSON Schema whose references resolve.

    Raises:
        ValueError: `schema` is not a JSON Schema, or a reference does not resolve.
    """
    try:
        Draft202012Validator.check_schema(schema)
        resource = DRAFT202012.create_resource(schema)
        resolver = Registry().with_resource("", resource).resolver()
        for part in subschemas(schema):
            resolver.lookup(part.get("$ref", "#"))
    except SchemaError as e:
        raise ValueError(f"the schema of a question is not a JSON Schema: {e.message[:MAX_TEXT]}") from None
    except Unresolvable as e:
        raise ValueError(f"$ref {e.ref!r} in the schema of a question refers to a part that does not exist") from None
