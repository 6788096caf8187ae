"""Strict parser that converts JSON bodies and query parameters to protobuf requests.

protobuf drops an unknown status and accepts any text as base64. The SDK reads every boolean other than "true" as
false. Without the strict checks, the gateway would execute a request that the
client did not send.

Source: A2A specification 3.3.2 (validation errors), 11.5 (query parameters); ProtoJSON.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.json_format import ParseDict
from google.protobuf.message import Message as Proto
from google.protobuf.struct_pb2 import NULL_VALUE, ListValue, Struct, Value
from google.protobuf.timestamp_pb2 import Timestamp

from ...lifecycle.json_values import INEXACT, TOO_DEEP, TooDeep, inexact_place
from ...operations.errors import invalid
from ..gate import count_value

P = TypeVar("P", bound=Proto)

LEVELS_ABOVE_VALUES = {"message": 11, "request": 11, "metadata": 3}
"""Number of protobuf levels between a field of a request and the values that clients choose, counted as in
`MAX_VALUE_DEPTH`. Protocol 0.3 has two names for the message."""

MAX_PATH = 300
"""Maximum length of the path of a number in an error, in characters. Clients choose the keys in the path."""

_RULES = {
    FieldDescriptor.TYPE_STRING: "A text.",
    FieldDescriptor.TYPE_BYTES: "Base64, standard or URL-safe.",
    FieldDescriptor.TYPE_BOOL: "true or false.",
    FieldDescriptor.TYPE_INT32: "A whole number.",
}
_JSON_TYPES = {
    "google.protobuf.Timestamp": "A time such as 2030-01-01T08:00:00Z.",
    "google.protobuf.Struct": "An object of JSON values.",
    "google.protobuf.Value": "A JSON value.",
}

_INT32 = range(-(2**31), 2**31)
_WHOLE = re.compile(r"-?[0-9]{1,10}", re.ASCII)
_PADDED_BASE64 = re.compile(r"[A-Za-z0-9+/]*={0,2}", re.ASCII)
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]*={0,2}", re.ASCII)


def parse_json(value: Any, kind: type[P]) -> P:
    """Parse a request from the JSON value `value`.

    Raises:
        InvalidParamsError: `value` is not a request of the type `kind`.
    """
    if not isinstance(value, Mapping):
        raise invalid("params", "An object.")
    for name, levels in LEVELS_ABOVE_VALUES.items():
        if name in value:
            require_exact(value[name], name, -levels)
    _require_known_names(value, kind)
    request = kind()
    _read_object(value, request)
    return request


def require_exact(value: Any, path: str, levels: int = 0) -> None:
    """Check that protobuf can represent the JSON `value`.

    Args:
        value: Value at `path` of the request, or an object that contains such values.
        path: Path of the value, for the error.
        levels: Number of protobuf levels above the value, or below 0 for an object that contains values.

    Raises:
        InvalidParamsError: A whole number would change, or the value is nested too deeply.
    """
    try:
        place = inexact_place(value, levels)
    except TooDeep:
        raise invalid("message", f"Data or metadata is {TOO_DEEP}.") from None
    if place is not None:
        raise invalid((path + place)[:MAX_PATH], INEXACT)


def _read_object(value: Mapping[str, Any], message: Proto, path: str = "") -> None:
    """Merge the JSON object `value` at `path` of the request into `message`. Unknown fields are ignored.

    protobuf's parser inspects the type of each message again, searches each text with a regular expression, and
    describes Python types in its errors. It is used only for values that are neither texts, booleans nor objects.

    Raises:
        InvalidParamsError: A value does not have the type of its field, or `value` has several fields of which one is
            permitted.
    """
    kind: Any = type(message)
    fields, choices = _fields(kind), set[str]()
    for name, inner in value.items():
        field = fields.get(name)
        if field is None:
            continue
        if field.choice and inner is not None:
            if field.choice in choices:
                raise invalid(path or "params", _choice_rule(field.descriptor))
            choices.add(field.choice)
        if type(inner) is field.plain_type:
            try:
                setattr(message, field.name, inner)
            except ValueError:  # an unknown name, or half of a surrogate pair
                _read_value(name, inner, message, field, _path(path, field.descriptor))
        elif inner is None or not (field.is_object or field.is_repeated):
            _read_value(name, inner, message, field, _path(path, field.descriptor))
        elif field.is_repeated:
            _read_list(name, inner, message, field, _path(path, field.descriptor))
        elif isinstance(inner, Mapping):
            inner_message = getattr(message, field.name)
            inner_message.SetInParent()
            _read_object(inner, inner_message, _path(path, field.descriptor))
        else:
            raise invalid(_path(path, field.descriptor), "An object.")


class _Field(NamedTuple):
    """Field of a message type.

    Attributes:
        plain_type: Python type of the values that are set unchanged, or None.
        is_object: True if the values are messages, except types with a special form in JSON.
        choice: Name of the group of fields of which a message has at most one, or "".
    """

    descriptor: Any
    name: str
    plain_type: type | None
    is_repeated: bool
    is_object: bool
    choice: str


_PLAIN_TYPES = {
    FieldDescriptor.TYPE_STRING: str,
    FieldDescriptor.TYPE_ENUM: str,
    FieldDescriptor.TYPE_BOOL: bool,
}


@cache
def _fields(kind: Any) -> dict[str, _Field]:
    """Return the fields of a message type by both names in JSON."""
    fields = {}
    for field in kind.DESCRIPTOR.fields:
        plain_type = None if field.is_repeated else _PLAIN_TYPES.get(field.type)
        is_object = field.message_type is not None and field.message_type.full_name not in _JSON_TYPES
        choice = field.containing_oneof.name if field.containing_oneof else ""
        fields[field.name] = _Field(field, field.name, plain_type, field.is_repeated, is_object, choice)
    return fields | {field.descriptor.json_name: field for field in fields.values()}


def _choice_rule(field: Any) -> str:
    names = [other.name for other in field.containing_oneof.fields]
    return f"Only one of: {', '.join(names)}." if len(names) > 1 else "The fields of this object, each once."


def _read_list(name: str, value: Any, message: Proto, field: _Field, path: str) -> None:
    if not isinstance(value, list):
        raise invalid(path, "A list.")
    message.ClearField(field.name)
    for number, item in enumerate(value):
        item_path = f"{path}[{number}]"
        if not field.is_object:
            holder = type(message)()
            _read_value(name, [item], holder, field, item_path)
            message.MergeFrom(holder)
        elif isinstance(item, Mapping):
            _read_object(item, getattr(message, field.name).add(), item_path)
        else:
            raise invalid(item_path, "An object.")


def _read_value(name: str, value: Any, message: Proto, field: _Field, path: str) -> None:
    """Merge the value of a field of a special type. Most values are merged by protobuf's parser, after a check of those
    that it would change instead of refusing them: it skips the invalid characters of base64, and reads true and 1.7 as
    the number 1 of an enum."""
    descriptor = field.descriptor
    try:
        if descriptor.type == FieldDescriptor.TYPE_BYTES and isinstance(value, str) and not is_base64(value):
            raise ValueError
        if descriptor.enum_type is not None and (isinstance(value, bool) or (isinstance(value, float) and value % 1)):
            raise ValueError
        if value is not None and descriptor.message_type in (Struct.DESCRIPTOR, Value.DESCRIPTOR):
            _read_struct(value, getattr(message, field.name))
        else:
            ParseDict({name: value}, message, ignore_unknown_fields=True)
    except Exception:  # protobuf raises many types
        raise invalid(path, _rule(descriptor)) from None


def _read_struct(value: Any, message: Any) -> None:
    """Merge a JSON value into a Struct, a ListValue or a Value. Heavy work takes breaks; see `count_value`.

    Raises:
        TypeError: `value` is not an object, and `message` is a Struct.
        ValueError: A text is not Unicode.
    """
    if isinstance(message, Struct):
        if not isinstance(value, Mapping):
            raise TypeError
        message.SetInParent()
        for name, inner in value.items():
            _read_struct(inner, message.fields[name])
    elif isinstance(message, ListValue):
        message.SetInParent()
        for inner in value:
            _read_struct(inner, message.values.add())
    elif isinstance(value, Mapping):
        _read_struct(value, message.struct_value)
    elif isinstance(value, list):
        _read_struct(value, message.list_value)
    else:
        count_value()
        _set_scalar(value, message)


def _set_scalar(value: Any, message: Value) -> None:
    if value is None:
        message.null_value = NULL_VALUE
    elif isinstance(value, bool):
        message.bool_value = value
    elif isinstance(value, str):
        message.string_value = value
    else:
        message.number_value = value


def _path(path: str, field: Any) -> str:
    """Return the path of `field` in the object at `path`."""
    return f"{path}.{_name(field)}" if path else _name(field)


@cache
def _name(field: Any) -> str:
    """Return the name of `field` in errors: its name, unless the specification gives the field another name in JSON,
    as protocol 0.3 does."""
    has_own_name = field.json_name.lower() != field.name.replace("_", "")
    return str(field.json_name if has_own_name else field.name)


def _rule(field: Any) -> str:
    """Return the rule for the values of `field`, which are not objects."""
    if field.enum_type is not None:
        return f"One of {', '.join(field.enum_type.values_by_name)}."
    return _RULES[field.type] if field.message_type is None else _JSON_TYPES[field.message_type.full_name]


def parse_query(query: Mapping[str, str], kind: type[P]) -> P:
    """Parse a request from query parameters. Unknown and nested parameters are ignored.

    Raises:
        InvalidParamsError: The value of a parameter does not have the type of its field.
    """
    params = kind()
    for field in kind.DESCRIPTOR.fields:
        text = query.get(field.json_name)
        if text is None:
            continue
        if field.message_type is not None and field.message_type is Timestamp.DESCRIPTOR:
            getattr(params, field.name).CopyFrom(_timestamp(field, text))
        elif (parser := _SCALARS.get(field.type)) is not None:
            setattr(params, field.name, parser(field, text))
    return params


def one_tenant(*tenants: str) -> str:
    """Return the tenant in the path, the query or the body of a request, or "" if there is none.

    Raises:
        InvalidParamsError: The request contains different tenants.
    """
    names = {tenant for tenant in tenants if tenant}
    if len(names) > 1:
        raise invalid("tenant", "The path, the query and the body name one tenant, or leave it out.")
    return next(iter(names), "")


def _boolean(field: Any, text: str) -> bool:
    if text not in ("true", "false"):
        raise invalid(field.name, _rule(field))
    return text == "true"


def _int32(field: Any, text: str) -> int:
    if _WHOLE.fullmatch(text) is None or int(text) not in _INT32:
        raise invalid(field.name, _rule(field))
    return int(text)


def _enum(field: Any, text: str) -> int:
    """Return the number of an enum value. The operation checks whether a number is known, in every binding."""
    assert field.enum_type is not None
    value = field.enum_type.values_by_name.get(text)
    if value is None and not text.isdecimal():
        raise invalid(field.name, _rule(field))
    return _int32(field, text) if value is None else int(value.number)


def _timestamp(field: Any, text: str) -> Timestamp:
    time = Timestamp()
    try:
        time.FromJsonString(text)
    except ValueError:
        raise invalid(field.name, _rule(field)) from None
    return time


_SCALARS: dict[int, Callable[[Any, str], Any]] = {
    FieldDescriptor.TYPE_STRING: lambda field, text: text,
    FieldDescriptor.TYPE_BOOL: _boolean,
    FieldDescriptor.TYPE_INT32: _int32,
    FieldDescriptor.TYPE_ENUM: _enum,
}


def _require_known_names(value: Mapping[str, Any], kind: type[Proto]) -> None:
    """Raise InvalidParamsError if a top-level enum field has an unknown value."""
    for field in kind.DESCRIPTOR.fields:
        text = value.get(field.json_name)
        if field.enum_type is not None and isinstance(text, str):
            _enum(field, text)


def is_padded_base64(text: str) -> bool:
    """Return True if `text` is base64 as A2A 0.3 defines it: standard, with padding."""
    return len(text) % 4 == 0 and _PADDED_BASE64.fullmatch(text) is not None


def is_base64(text: str) -> bool:
    """Return True if `text` is base64 as ProtoJSON defines it: standard or URL-safe, with or without padding."""
    if _BASE64.fullmatch(text) is None:
        return False
    return len(text) % 4 == 0 if text.endswith("=") else len(text) % 4 != 1
