"""Signatures of the store's scripts.

A verb is a Python function with the name of a script, perhaps after an underscore. Its parameters are the parameters of
the script, and its body returns the parser of the script's reply. The linker declares the parameters at the beginning
of the script, so a script uses them by name. A call of the verb returns an `Operation`:

    @verb
    def end_run(keys: Keys, ref: RunRef, *, event: StatusToWrite, lost: bool = False) -> Reply[Over]:
        return Reply(parse)

    operation = end_run(keys, ref, event=event)

A function that computes arguments for the script calls a private verb:

    def request_cancel(keys: Keys, scope: Scope, task_id: str, text: str) -> Operation[Canceled]:
        return _request_cancel(keys, task_id, scope, uuid4().hex, canceled_status(text))

    @verb
    def _request_cancel(keys: Keys, task_id: TaskId, scope: ExactScope, nonce: str, event: StatusToWrite) -> Reply[…]: …

The annotation of a parameter determines what the script receives:

    Keys                the names of `Keys` that the script uses, such as ``dispatch``; the first parameter
    TaskId              table ``keys`` with the keys of the task by name, and the id by the parameter's name
    RunRef              table ``keys`` with the keys of the task by name, and the number ``run``
    TaskKeys            table with the keys of the task by name
    Key                 name of a key
    Sequence[Key]       list of all further keys
    str, bytes          string
    Digits              int as a string, for a number above 2**53 or one that the script only stores
    int, float          number
    bool                boolean
    T | None            nil for None, and for an empty string
    Sequence[T]         list
    a NamedTuple        table with the fields by name
    Annotated[T, f]     ``f(value)`` or ``f(keys, value)``, by the return annotation of ``f``; ``f`` also converts None,
                        except in ``Annotated[T, f] | None``
    Unsent[T]           nothing; only the body of the verb uses the value

A script may also use the constants of its verb's module. A verb whose script uses another name, or does not use a
parameter, is refused when its module is imported.

A feature adds a `Section` to the calls of a verb with a parameter `sections: Sections`. The script of such a call also
contains the Lua code of the section. A script runs its sections with ``<point>_sections(…)``. This calls the function
``<point>`` of each section with the section's table and the same arguments, and returns the value of each function. A
section that has no function for any point of the script does not take part in the call.
The functions of the points ``check``, ``validate`` and ``admit`` are called until one of them returns a reply, which is
returned. A call without sections runs a script without their code.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property, lru_cache, partial, wraps
from inspect import signature as signature_of
from itertools import count
from operator import itemgetter
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Generic,
    NamedTuple,
    ParamSpec,
    Protocol,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from ..lifecycle.references import RunRef
from .keys import Keys, TaskKeys
from .operation import HEADERS, Argument, Operation, defined_names, script, script_text

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")

Key = Annotated[str, "key"]
"""Name of a Redis key."""

Digits = Annotated[int, "digits"]
"""Number that the script receives as a string. A number of Lua is written with only 14 digits."""

TaskId = Annotated[str, "task"]
"""Id of a task, of which the script receives the keys."""

Unsent = Annotated[T, "unsent"]
"""Value that the script does not receive."""

Parser = Callable[[Any], T]
"""Function that converts the reply of a script to the result."""


class Reply(NamedTuple, Generic[T]):
    """Parser of a script's reply, with options of the call that `Operation` describes."""

    parse: Parser[T]
    resolve_blobs: bool = True
    size: Callable[[Any], int] | None = None
    ends_task: bool = False


def no_result(_: object) -> None:
    """Parse a reply without content."""


class Section(Protocol[R_co]):
    """Part of a call that belongs to a feature: a NamedTuple, which the section's Lua code receives as a table. Its
    class is decorated with `section`."""

    def parse(self, task_id: str, reply: Sequence[bytes]) -> R_co | None:
        """Return the parsed reply of the section, or None if the reply does not come from the section."""


Sections = Annotated[Sequence[Section[Any]], "sections"]
"""Sections of a call."""


def parsed_by(sections: Sequence[Section[R_co]], task_id: str, reply: Sequence[bytes]) -> R_co | None:
    """Return the reply of a section, parsed, or None for a reply of the script itself."""
    replies = (section.parse(task_id, reply) for section in sections)
    return next((parsed for parsed in replies if parsed is not None), None)


S = TypeVar("S", bound=type[Any])


def verb(function: Callable[P, Reply[T]]) -> Callable[P, Operation[T]]:
    """Return the function that creates the operation of a call.

    Raises:
        TypeError: A parameter has an annotation without a Lua form, or the names of the signature and of the script
            differ.
    """
    name = function.__name__.lstrip("_")
    defaults = {parameter: value.default for parameter, value in signature_of(function).parameters.items()}
    names = list(defaults)
    hints = get_type_hints(function, include_extras=True)
    text = script_text(name)
    points = list(dict.fromkeys(_POINT.findall(text)))
    undefined = undefined_names(text) - {f"{point}_sections" for point in points}
    received = sorted(_received(names, hints, undefined), key=lambda pair: _order(pair[0].form))
    parameters = [parameter for parameter, _ in received]
    received_names = [parameter.name for parameter in parameters]
    if repeated := {used for used in received_names if received_names.count(used) > 1}:
        raise TypeError(f"script {name} would receive {min(repeated)} twice")
    undefined.difference_update(received_names)
    constants = sorted(used for used in undefined if used.isupper() and used in function.__globals__)
    if wrong := [used for used in constants if type(function.__globals__[used]) not in (int, float, str)]:
        raise TypeError(f"script {name} uses {wrong[0]}, which is neither a number nor a text")
    require_names(f"script {name}", text, parameters, undefined.difference(constants))

    def header_with(sections: tuple[type[Any], ...]) -> str:
        codes = [SECTIONS[kind] for kind in sections]
        features = [code.table.name for code in codes]
        if repeated := {feature for feature in features if features.count(feature) > 1}:
            raise TypeError(f"script {name} has two sections of the feature {min(repeated)}")
        if taken := {*features} & {*received_names, *defined_names()}:
            raise TypeError(f"script {name} has a parameter or a library with the name of the feature {min(taken)}")
        declared = (f"local {constant} = {function.__globals__[constant]!r}\n" for constant in constants)
        lines = header([*parameters, *(code.table for code in codes)])
        return "".join(declared) + lines + _code_of(codes, points)

    header_with(())  # refuses a wrong signature
    HEADERS[name] = header_with
    keys = [(form.add, value_of) for (_, form), value_of in received if isinstance(form, KeyForm)]
    scalars = [(form.encode, value_of) for (_, form), value_of in received if isinstance(form, ScalarForm)]
    others = [(form.add, value_of) for (_, form), value_of in received if isinstance(form, TableForm | ListForm)]
    sections_at = next((n for n, parameter in enumerate(names) if hints[parameter] == Sections), None)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Operation[T]:
        reply = function(*args, **kwargs)  # refuses wrong arguments
        values = [*args, *(kwargs.get(parameter, defaults[parameter]) for parameter in names[len(args) :])]
        key_names: list[str] = []
        for add, value_of in keys:
            add(key_names, value_of(values))
        arguments: list[Argument] = [
            value_of(values) if encode is None else encode(value_of(values)) for encode, value_of in scalars
        ]
        for add_all, value_of in others:
            add_all(arguments, value_of(values))
        sections: Any = () if sections_at is None else values[sections_at]
        kinds = []
        for section in sections:
            code = SECTIONS[type(section)]
            if not code.functions.isdisjoint(points):
                code.table.form.add(arguments, section)
                kinds.append(type(section))
        return Operation(script(name, tuple(kinds)), key_names, arguments, *reply)

    return call


class Parameter(NamedTuple):
    """Parameter of a script, or field of a table."""

    name: str
    form: Any


ValueOf = Callable[[Sequence[Any]], Any]
"""Function that returns the value of a script's parameter from the values of all parameters of the verb."""


class SectionCode(NamedTuple):
    """Lua code of a class of sections.

    Attributes:
        table: Table that the functions receive, with the name of the feature.
        text: Functions of the section.
        functions: Names of the functions.
    """

    table: Parameter
    text: str
    functions: frozenset[str]


SECTIONS: dict[type[Any], SectionCode] = {}
"""Lua code of each class of sections."""


def section(lua: Path) -> Callable[[S], S]:
    """Return a decorator that gives a class of sections its Lua code.

    Args:
        lua: File with the functions of the section, in the folder of the feature.

    Raises:
        TypeError: The code uses an unknown name.
    """

    def register(kind: S) -> S:
        feature, text = lua.parent.name, lua.read_text("utf-8")
        table = Parameter(feature, _form(kind))
        fields: Sequence[Parameter] = table.form.fields
        require_names(f"section {feature}", text, [table] if fields else [], undefined_names(text) - {feature})
        SECTIONS[kind] = SectionCode(table, text, frozenset(_FUNCTION.findall(text)))
        return kind

    return register


def _code_of(sections: Sequence[SectionCode], points: Sequence[str]) -> str:
    """Return the Lua code of sections, and the functions with which a script runs them."""
    lines, calls = [], {point: list[str]() for point in points}
    for (feature, _), text, defined in sections:
        functions = [point for point in points if point in defined]
        names = ", ".join(f"{feature}_{point}" for point in functions)
        lines += [f"local {names}", "do", text, f"{names} = {', '.join(functions)}", "end"]
        for point in functions:
            calls[point].append(f"{feature}_{point}({feature}, ...)")
    for point in points:
        values = " or ".join(calls[point]) if point in _REFUSING else ", ".join(f"({call})" for call in calls[point])
        lines.append(f"local function {point}_sections(...) return {values} end")
    return "".join(f"{line}\n" for line in lines)


_POINT = re.compile(r"\b(\w+)_sections\(")
"""Point at which a script runs its sections."""
_REFUSING = ("check", "validate", "admit")
"""Points at which a section can refuse a call with its reply."""
_FUNCTION = re.compile(r"^local function (\w+)\(", re.MULTILINE)


class KeyForm(Enum):
    """Form of keys. ``KEYS`` has this order."""

    TASK = "table with the keys of a task"
    ONE = "name of a key"
    LIST = "list of all further keys"

    def add(self, keys: list[str], value: Any) -> None:
        """Append the key or keys `value`."""
        if self is KeyForm.ONE:
            keys.append(value)
        else:
            keys.extend(value)


class ScalarForm(NamedTuple):
    """Argument of one string.

    Attributes:
        expression: Lua expression of the value. ``{}`` stands for the argument.
        encode: Function that encodes the value, or None to pass it on.
    """

    expression: str
    encode: Callable[[Any], Argument] | None = None

    def add(self, arguments: list[Any], value: Any) -> None:
        """Append the argument for `value`."""
        arguments.append(value if self.encode is None else self.encode(value))

    def read(self) -> str:
        """Return the Lua expression that reads the value."""
        return self.expression.format("argument()")


@dataclass(frozen=True)
class TableForm:
    """Arguments of a NamedTuple, which the script receives as a table.

    Attributes:
        is_optional: True if the value may be None. An argument before the fields is then '1', or '' for None.
    """

    fields: Sequence[Parameter]
    is_optional: bool

    @cached_property
    def is_plain(self) -> bool:
        """True if the fields are arguments without encoding."""
        return all(isinstance(field.form, ScalarForm) and field.form.encode is None for field in self.fields)

    def add(self, arguments: list[Any], value: Any) -> None:
        """Append the arguments for `value`."""
        if self.is_optional:
            arguments.append("" if value is None else 1)
        if value is None:
            return
        if self.is_plain:
            arguments.extend(value)
            return
        for field, item in zip(self.fields, value, strict=True):
            field.form.add(arguments, item)

    def read(self) -> str:
        """Return the Lua expression that reads the table, or nil for None."""
        table = f"{{{', '.join(f'{field.name} = {field.form.read()}' for field in self.fields)}}}"
        return f"argument() ~= '' and {table} or nil" if self.is_optional else table


class ListForm(NamedTuple):
    """Arguments of a sequence, which the script receives as a list. The number of items comes first."""

    item: ScalarForm | TableForm

    def add(self, arguments: list[Any], value: Any) -> None:
        """Append the arguments for `value`."""
        arguments.append(len(value))
        for item in value:
            self.item.add(arguments, item)

    def read(self) -> str:
        """Return the Lua expression that reads the list."""
        return f"list_of(function() return {self.item.read()} end)"


def _order(form: Any) -> int:
    """Return the position of a form among the parameters: keys, then scalars, then tables and lists."""
    return list(KeyForm).index(form) if isinstance(form, KeyForm) else 3 if isinstance(form, ScalarForm) else 4


_STRING, _NUMBER = ScalarForm("{}"), ScalarForm("tonumber({})")
_SCALARS: dict[Any, ScalarForm] = {
    str: _STRING,
    bytes: _STRING,
    Digits: _STRING,
    int: _NUMBER,
    float: ScalarForm("tonumber({})", repr),
    bool: ScalarForm("{} == '1'", int),
}

_PREFIXES = {"prefix", "runners"}
"""Names of `Keys` that scripts may use and that are prefixes of keys or channels."""
_PATTERNS = {"notification_channels", "reply_channel_loads", "_plain_prefix"}
_IMPLIED = _PREFIXES | {name for name, value in vars(Keys).items() if isinstance(value, property)} - _PATTERNS
"""Names of `Keys` that scripts may use."""
TASK_KEYS = tuple(TaskKeys.__annotations__)


def _received(
    names: Sequence[str], hints: Mapping[str, Any], used: Collection[str]
) -> Iterator[tuple[Parameter, ValueOf]]:
    """Yield the parameters of the script of a verb, each with the function that returns its value.

    Args:
        names: Names of the verb's parameters.
        hints: Annotations of the verb's parameters by name.
        used: Names that the script uses and does not define.

    Raises:
        TypeError: A parameter has an annotation without a Lua form, or `Keys` is not the first parameter.
    """
    if any(hints[name] is Keys for name in names[1:]):
        raise TypeError("the parameter of the type Keys comes first")
    for n, name in enumerate(names):
        hint = hints[name]
        if hint is Keys:
            for implied in sorted(_IMPLIED.intersection(used).difference(names)):
                form = _STRING if implied in _PREFIXES else KeyForm.ONE
                yield Parameter(implied, form), partial(_implied_value, implied)
        elif hint is RunRef:
            yield Parameter("keys", KeyForm.TASK), partial(_keys_of_run, n)
            yield Parameter("run", _NUMBER), partial(_run_of, n)
        elif hint == TaskId:
            yield Parameter("keys", KeyForm.TASK), partial(_keys_of_task, n)
            if name in used:
                yield Parameter(name, _STRING), itemgetter(n)
        elif conversion := _conversion(hint):
            convert, returned = conversion
            yield Parameter(name, _form(returned)), partial(_converted, n, convert)
        elif hint != Sections and "unsent" not in get_args(hint):
            yield Parameter(name, _form(hint)), itemgetter(n)


def _implied_value(name: str, values: Sequence[Any]) -> Any:
    return getattr(values[0], name)


def _keys_of_task(position: int, values: Sequence[Any]) -> Any:
    return values[0].task(values[position])


def _keys_of_run(position: int, values: Sequence[Any]) -> Any:
    return values[0].task(values[position].task_id)


def _run_of(position: int, values: Sequence[Any]) -> Any:
    return values[position].run


def _converted(position: int, convert: Callable[[Keys, Any], Any], values: Sequence[Any]) -> Any:
    return convert(values[0], values[position])


def _conversion(hint: Any) -> tuple[Callable[[Keys, Any], Any], Any] | None:
    """Return the function of ``Annotated[T, f]`` or ``Annotated[T, f] | None`` and the type of its results, or None for
    any other annotation. The None of the second form is not converted."""
    is_optional = get_origin(hint) in (Union, UnionType)
    options = get_args(hint) if is_optional else (hint,)
    functions = [option.__metadata__[0] for option in options if get_origin(option) is Annotated]
    function: Callable[..., Any] | None = next(filter(callable, functions), None)
    if function is None:
        return None
    returned = get_type_hints(function, include_extras=True)["return"]
    with_keys = _needs_keys(function)

    def convert(keys: Keys, value: Any) -> Any:
        if value is None and is_optional:
            return None
        return function(keys, value) if with_keys else function(value)

    return convert, returned | None if is_optional else returned


def _needs_keys(convert: Callable[..., Any]) -> bool:
    return "keys" in signature_of(convert).parameters


def _form(hint: Any) -> Any:
    """Return the form of a parameter with the annotation `hint`."""
    if hint is TaskKeys:
        return KeyForm.TASK
    if hint == Key:
        return KeyForm.ONE
    if get_origin(hint) is Sequence:
        (item,) = get_args(hint)
        return KeyForm.LIST if item == Key else ListForm(_form(item))
    is_optional = get_origin(hint) in (Union, UnionType)
    if is_optional:
        hint = next(option for option in get_args(hint) if option is not NoneType)
    if scalar := _SCALARS.get(hint):
        if not is_optional:
            return scalar
        expression, encode = scalar
        return ScalarForm(
            "or_nil({})" if scalar is _STRING else expression,
            lambda value: "" if value is None else value if encode is None else encode(value),
        )
    convert = hint.__metadata__[0] if get_origin(hint) is Annotated and not is_optional else None
    if callable(convert) and not _needs_keys(convert):  # item of a list, or field of a table
        form = _form(get_type_hints(convert, include_extras=True)["return"])
        if isinstance(form, ScalarForm):
            encode = form.encode
            return form._replace(encode=convert if encode is None else lambda value: encode(convert(value)))
    if isinstance(hint, type) and issubclass(hint, tuple):
        hints = get_type_hints(hint, include_extras=True)
        return TableForm([Parameter(name, _form(hints[name])) for name in hints], is_optional)
    raise TypeError(f"no argument of a script has the type {hint}")


def header(parameters: Sequence[Parameter]) -> str:
    """Return the Lua lines that declare the parameters of a script, in the order of `_order`."""
    scalar_count = sum(isinstance(form, ScalarForm) for _, form in parameters)
    keys, scalars = count(1), count(1)
    lines = ["-- requires: arguments"]
    if any(isinstance(form, TableForm | ListForm) for _, form in parameters):
        lines.append(f"argument_position = {scalar_count}")
    for name, form in parameters:
        match form:
            case KeyForm.TASK:
                lines.append(f"local {name} = {{{', '.join(f'{key} = KEYS[{next(keys)}]' for key in TASK_KEYS)}}}")
            case KeyForm.ONE:
                lines.append(f"local {name} = KEYS[{next(keys)}]")
            case KeyForm.LIST:
                first = next(keys)
                lines += [f"local {name} = {{}}", f"for i = {first}, #KEYS do {name}[i - {first - 1}] = KEYS[i] end"]
            case ScalarForm():
                lines.append(f"local {name} = {form.expression.format(f'ARGV[{next(scalars)}]')}")
            case _:
                lines.append(f"local {name} = {form.read()}")
    return "".join(f"{line}\n" for line in lines)


@lru_cache(2)
def _tokens(text: str) -> Sequence[tuple[str, str, str]]:
    return _TOKENS.findall(text)


def undefined_names(text: str) -> set[str]:
    """Return the names that a script or section uses and that neither the text nor a library defines."""
    tokens = _tokens(text)
    local = {match for _, names, _ in tokens for match in _NAME.findall(names)}
    return {use for _, _, use in tokens if use} - local - defined_names()


def require_names(what: str, text: str, parameters: Sequence[Parameter], undefined: set[str]) -> None:
    """Require that a script or section uses all its parameters, and only names that are defined.

    Args:
        what: Kind and name of the text.
        text: Text of the script or section.
        parameters: Parameters of the text.
        undefined: Names that the text uses and that are not defined.

    Raises:
        TypeError: The names differ.
    """
    if unused := {parameter.name for parameter in parameters} - {use for _, _, use in _tokens(text)}:
        raise TypeError(f"{what} does not use {', '.join(sorted(unused))}")
    if undefined:
        raise TypeError(f"{what} uses {', '.join(sorted(undefined))}, which is not in its signature")
    for name, form in parameters:
        if isinstance(form, TableForm):
            known = {field.name for field in form.fields}
            if unknown := set(re.findall(rf"\b{name}\.(\w+)", text)) - known:
                raise TypeError(f"{what} uses {name}.{min(unknown)}, which {name} does not have")


_TOKENS = re.compile(
    r"--.*|'(?:[^'\\\n]|\\.)*'|[.:\d]\w+"  # comments, strings, fields and numbers
    r"|\b(?:and|break|do|else|elseif|end|false|if|in|local(?= function)|nil|not|or|repeat|return|then|true|until"
    r"|while)\b"
    r"|\b(?:bit|cjson|cmsgpack|error|ipairs|math|next|pairs|pcall|redis|select|setmetatable|string|struct|table"
    r"|tonumber|tostring|type|unpack)\b"
    r"|[{,]\s*([A-Za-z_]\w*)\s*=(?!=)"  # names of fields in a table constructor
    r"|\b(?:local (?!function)|for |function ?)((?:(?! in )[\w, ])*(?:\([\w, ]*\))?)"  # names that are defined
    r"|([A-Za-z_]\w*)"
)
_NAME = re.compile(r"[A-Za-z_]\w*")
