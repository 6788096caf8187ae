"""Validation of a JSON value against a JSON Schema, in bounded time and memory.

Regular expressions take linear time. The work of a validation is counted, and its CPU time is limited. References are
never fetched.

The jsonschema library validates, because its validation can be interrupted at every keyword. Validators in C or Rust
cannot be interrupted, and a union that contains itself takes them exponential time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from time import thread_time
from typing import Any

from jsonschema import Draft202012Validator, validators
from jsonschema.exceptions import SchemaError
from jsonschema.exceptions import ValidationError as Broken
from pydantic import ValidationError
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from .json_values import MAX_EXACT
from .questions import MAX_TEXT, Violation, compiled_pattern, subschemas

MAX_KEYWORDS = 50_000
"""Maximum number of keyword checks for one value. An expensive check counts as several checks. This number of checks
takes about half a second of CPU time."""

MAX_CPU_SECONDS = 1.0
"""Maximum CPU time of a validation, for checks that cost more than `_cost` expects."""

MAX_NESTED = 128
"""Maximum number of keywords that are checked inside one another. Each takes about four frames of the stack."""

MAX_VIOLATIONS = 20
"""Maximum number of violations that are reported for one value."""

MAX_QUOTE = MAX_TEXT // 2
"""Maximum length of a quoted value in a violation, in characters."""

CHECKS_PER_READING = 32
"""Number of checks between two readings of the CPU clock."""

NAMES_PER_CHECK = 64
"""Number of names or characters in the value of a keyword that cost as much as a keyword check."""

MAX_COMBINATIONS = 200_000
"""Maximum number of combinations of the branches of nested unions."""

COMPARISONS_PER_CHECK = 500
"""Number of comparisons of two items that cost as much as a keyword check."""


def violations_of(
    schema: Mapping[str, Any],
    value: Any,
    *,
    pause: Callable[[], object] = lambda: None,
    cpu_clock: Callable[[], float] = thread_time,
) -> list[Violation]:
    """Return the rules of `schema` that the JSON `value` breaks, at most `MAX_VIOLATIONS`.

    If the validation exceeds a limit of this module or the maximum recursion depth, return a single violation, which
    says that the answer is too large.

    Args:
        schema: JSON Schema.
        value: JSON value.
        pause: Function that is called after every `CHECKS_PER_READING` checks, so that other threads can run.
        cpu_clock: Function that returns the CPU time of the current thread in seconds.
    """
    validator = _Validation(pause, cpu_clock).validator_class()(schema, registry=Registry())
    violations: list[Violation] = []
    try:
        for error in validator.iter_errors(value):
            assert isinstance(error, Broken)
            violations.append(_violation(error))
            if len(violations) == MAX_VIOLATIONS:
                break
    except (_TooMuchWork, RecursionError):
        return [Violation("", "The answer has too many values for its schema: send a smaller one.")]
    return list(dict.fromkeys(violations))


class _TooMuchWork(Exception):
    """Error for a validation that exceeded a limit."""


Keyword = Callable[[Any, Any, Any, Any], Iterator[Any] | None]
"""Function that checks a keyword and yields errors. The arguments are the validator, the value of the keyword, the
instance and the schema."""


class _Validation:
    """Validation of one value: its counted work, and the keywords that jsonschema checks less efficiently.

    Errors of the keywords in `QUOTED` have a message to which `_violation` adds the quoted instance. A branch that does
    not match creates errors that are never reported, so their messages must be cheap.
    """

    def __init__(self, pause: Callable[[], object], cpu_clock: Callable[[], float]) -> None:
        self._pause = pause
        self._cpu_clock = cpu_clock
        self._deadline = cpu_clock() + MAX_CPU_SECONDS
        self._work = self._nested = self._next_reading = 0
        self._combinations, self._all_combinations = 1, 0  # of branches of the enclosing unions, and of all unions
        self._combinations_of: dict[int, int] = {}  # by the id of the instance
        self._choices: dict[int, tuple[frozenset[str], bool]] = {}  # by the id of the value of ``enum``

    def validator_class(self) -> Any:
        """Return a new validator class, whose instances count their keyword checks in this validation."""
        keywords: dict[str, Keyword] = {
            **Draft202012Validator.VALIDATORS,
            "anyOf": self._any_of,
            "enum": self._enum,
            "oneOf": self._one_of,
            "pattern": _pattern,
            "type": _type,
            "uniqueItems": _unique_items,
        }
        counted = {name: self._counted(name, keyword) for name, keyword in keywords.items()}
        return validators.extend(Draft202012Validator, counted)

    def _counted(self, name: str, keyword: Keyword) -> Keyword:
        def check(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
            self._spend(_cost(name, value, instance))
            if self._nested == MAX_NESTED:
                raise _TooMuchWork
            self._nested += 1
            try:
                yield from keyword(validator, value, instance, schema) or ()
            finally:
                self._nested -= 1

        return check

    def _spend(self, work: int) -> None:
        self._work += work
        if self._work > MAX_KEYWORDS:
            raise _TooMuchWork
        if self._work > self._next_reading:
            self._next_reading = self._work + CHECKS_PER_READING
            self._pause()
            if self._cpu_clock() > self._deadline:
                raise _TooMuchWork

    def _enum(self, _: Any, choices: list[Any], instance: Any, schema: Any) -> Iterator[Any]:
        if id(choices) not in self._choices:
            has_containers = any(isinstance(choice, dict | list) for choice in choices)
            self._choices[id(choices)] = (frozenset(map(_canonical_json, choices)), has_containers)
        canonical_choices, has_containers = self._choices[id(choices)]
        may_match = has_containers or not isinstance(instance, dict | list)
        if not may_match or _canonical_json(instance) not in canonical_choices:
            yield Broken(f"is not one of {_quote(choices)}")

    def _any_of(self, validator: Any, branches: list[Any], instance: Any, schema: Any) -> Iterator[Any]:
        if next(self._matches(validator, branches, instance), None) is None:
            yield Broken("is not valid under any of the given schemas")

    def _one_of(self, validator: Any, branches: list[Any], instance: Any, schema: Any) -> Iterator[Any]:
        matches = self._matches(validator, branches, instance)
        if next(matches, None) is None:
            yield Broken("is not valid under any of the given schemas")
        elif next(matches, None) is not None:
            yield Broken("is valid under more than one of the given schemas")

    def _matches(self, validator: Any, branches: list[Any], instance: Any) -> Iterator[Any]:
        """Yield the branches that `instance` matches. The check of a branch stops at its first error."""
        outer = self._combinations
        self._combinations *= max(1, sum(_may_match(branch, instance) for branch in branches))
        try:
            if self._combinations > 1:
                self._limit_combinations(instance)
            for branch in branches:
                if next(validator.descend(instance, branch), None) is None:
                    yield branch
        finally:
            self._combinations = outer

    def _limit_combinations(self, instance: Any) -> None:
        """Count the combinations of branches that may match `instance`, even if most of the branches stop early.

        Pydantic, which converts the answer in the worker, tries all fields of all branches, and cannot be interrupted.
        """
        counted = self._combinations_of.get(id(instance), 0)
        if self._combinations > counted:
            self._combinations_of[id(instance)] = self._combinations
            self._all_combinations += self._combinations - counted
            if self._all_combinations > MAX_COMBINATIONS:
                raise _TooMuchWork


def _cost(name: str, value: Any, instance: Any) -> int:
    """Return the number of checks that a check of the keyword `name` with this value counts as."""
    cost = 1
    if name in ("unevaluatedItems", "unevaluatedProperties") and isinstance(instance, dict | list):
        cost += len(instance) ** 2 // COMPARISONS_PER_CHECK  # jsonschema takes quadratic time
    elif name != "enum" and isinstance(value, dict | list | str):
        cost += len(value) // NAMES_PER_CHECK
    return cost


def _may_match(branch: Any, instance: Any) -> bool:
    """Return False if `instance` contains no values, or if the type of `branch` excludes `instance`."""
    match instance:
        case dict():
            kind = "object"
        case list():
            kind = "array"
        case _:
            return False
    types = branch.get("type", kind) if isinstance(branch, Mapping) else kind
    return kind in types if isinstance(types, list) else kind == types


def _canonical_json(value: Any) -> str:
    """Return JSON that is equal for equal JSON values, such as 1 and 1.0. Python's hashes of numbers would let a client
    choose values with equal hashes."""
    return json.dumps(_without_whole_floats(value), sort_keys=True)


def _without_whole_floats(value: Any) -> Any:
    match value:
        case float() if value.is_integer():
            return int(value)
        case dict():
            return {key: _without_whole_floats(inner) for key, inner in value.items()}
        case list():
            return [_without_whole_floats(inner) for inner in value]
        case _:
            return value


def _type(validator: Any, types: str | list[str], instance: Any, schema: Any) -> Iterator[Any]:
    names = [types] if isinstance(types, str) else types
    matches = [name for name in names if validator.is_type(instance, name)]
    if not matches:
        yield Broken(f"is not of type {', '.join(map(repr, names))}")
    elif matches == ["integer"] and isinstance(instance, float) and abs(instance) > MAX_EXACT:
        yield Broken("is not exact: A2A rounds whole numbers beyond 2^53 - 1. Send the answer as JSON in a text part")


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[Any]:
    if not validator.is_type(instance, "string"):
        return
    try:
        compiled_pattern(pattern).validate_python(instance)
    except ValidationError:
        yield Broken(f"does not match {pattern!r}")


def _unique_items(validator: Any, unique: bool, instance: Any, schema: Any) -> Iterator[Any]:
    """Check ``uniqueItems`` in linear time. The jsonschema library takes quadratic time for arrays of objects."""
    if not unique or not validator.is_type(instance, "array"):
        return
    if len(set(map(_canonical_json, instance))) < len(instance):
        yield Broken("The items must be unique")


QUOTED = frozenset({"anyOf", "enum", "oneOf", "pattern", "type"})
"""Keywords whose errors describe the instance without quoting it."""


def _quote(value: Any) -> str:
    """Return ``repr(value)``, shortened to `MAX_QUOTE` characters, without building the complete text."""
    text = ""
    for piece in _repr_pieces(value):
        text += piece
        if len(text) > MAX_QUOTE:
            return f"{text[:MAX_QUOTE]} …"
    return text


def _repr_pieces(value: Any) -> Iterable[str]:
    match value:
        case str():
            yield repr(value[: MAX_QUOTE + 1])
        case list():
            yield "["
            for index, item in enumerate(value):
                yield ", " if index else ""
                yield from _repr_pieces(item)
            yield "]"
        case dict():
            yield "{"
            for index, (key, item) in enumerate(value.items()):
                yield ", " if index else ""
                yield from _repr_pieces(key)
                yield ": "
                yield from _repr_pieces(item)
            yield "}"
        case _:
            yield repr(value)


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
        case keyword if keyword in QUOTED:
            return Violation(path, f"{_quote(error.instance)} {error.message}"[:MAX_TEXT] + ".")
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
