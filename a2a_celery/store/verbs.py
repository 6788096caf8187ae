"""Signatures of the store's scripts.

A verb is a Python function without a body. Its parameters are the keys and arguments of the script with the same name,
without the leading underscore of the function. The linker writes the line ``local … = KEYS[1], …, ARGV[1], …`` of the
script from the signature, so a script uses its parameters by name, and a call encodes them in the same order:

    @verb
    def _postpone_runs(dispatch: Key, due: Digits, runs: Sequence[str]) -> None: ...

    Operation(*_postpone_runs(keys.dispatch, due_us, names), parse)

The annotation of a parameter determines what the script receives:

    TaskKeys            table with the keys of a task by name
    Key                 name of a key
    Sequence[Key]       list of all further keys
    str, bytes          string
    Digits              int as a string, for a number above 2**53 or one that the script only stores
    int, float          number
    bool                boolean
    T | None            nil for None, and for an empty string
    Sequence[T]         list
    a NamedTuple        table with the fields by name

A verb whose script uses another name, or does not use a parameter, is refused when its module is imported.

A feature adds a `Section` to the calls of a verb with a parameter `sections: Sections`. The script of such a call also
contains the Lua code of the section. A script runs its sections with ``<point>_sections(…)``. This calls the function
``<point>`` of each section with the section's table and the same arguments. The functions of the points ``check`` and
``validate`` are called until one of them returns a reply. A call without sections runs a script without their code.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from inspect import signature as signature_of
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    NamedTuple,
    ParamSpec,
    Protocol,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from .keys import TaskKeys
from .operation import HEADERS, Argument, Script, defined_names, script, script_text

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)

Key = Annotated[str, "key"]
"""Name of a Redis key."""

Digits = Annotated[int, "digits"]
"""Number that the script receives as a string. A number of Lua is written with only 14 digits."""


class Section(Protocol[R_co]):
    """Part of a call that belongs to a feature: a NamedTuple, which the section's Lua code receives as a table. Its
    class is decorated with `section`."""

    def parse(self, task_id: str, reply: Sequence[bytes]) -> R_co | None:
        """Return the parsed reply of the section, or None if the reply does not come from the section."""


Sections = Annotated[Sequence[Section[Any]], "sections"]
"""Sections of a call."""

S = TypeVar("S", bound=type[Any])


class Call(NamedTuple):
    """Call of a script: the first fields of an `Operation`."""

    script: Script
    keys: Sequence[str]
    args: Sequence[Argument]


def verb(signature: Callable[P, None]) -> Callable[P, Call]:
    """Return the function that encodes a call of the script with the signature.

    Raises:
        TypeError: A parameter has an annotation without a Lua form, or the names of the signature and of the script
            differ.
    """
    name = signature.__name__.lstrip("_")
    hints = get_type_hints(signature, include_extras=True)
    parameters = [(parameter, _form(hints[parameter])) for parameter in signature_of(signature).parameters]
    plain = [(parameter, form) for parameter, form in parameters if not isinstance(form, SectionsForm)]
    text = script_text(name)
    points = list(dict.fromkeys(_POINT.findall(text)))
    require_names(f"script {name}", text, plain, points)
    names = [parameter for parameter, _ in parameters]

    def header_with(sections: tuple[type[Any], ...]) -> str:
        codes = [SECTIONS[kind] for kind in sections]
        features = [code.feature for code in codes]
        if repeated := {feature for feature in features if features.count(feature) > 1}:
            raise TypeError(f"script {name} has two sections of the feature {min(repeated)}")
        if taken := {*features} & {*names, *defined_names()}:
            raise TypeError(f"script {name} has a parameter or a library with the name of the feature {min(taken)}")
        return header([*plain, *((code.feature, code.table) for code in codes)]) + _code_of(codes, points)

    header_with(())  # refuses a wrong signature
    HEADERS[name] = header_with
    forms = list(enumerate(form for _, form in parameters))
    key_forms = [(n, form) for n, form in forms if isinstance(form, KeyForm | TaskForm)]
    encoders = [(n, form.encode) for n, form in forms if isinstance(form, ScalarForm)]
    others = [(n, form) for n, form in forms if isinstance(form, TableForm | ListForm)]  # follow all plain arguments
    sections_at = next((n for n, form in forms if isinstance(form, SectionsForm)), None)

    def call(*args: P.args, **kwargs: P.kwargs) -> Call:
        values: Sequence[Any] = [*args, *[kwargs[parameter] for parameter in names[len(args) :]]] if kwargs else args
        if len(values) != len(args) + len(kwargs) or len(values) != len(names):
            raise TypeError(f"script {name}: expected the arguments {', '.join(names)}")
        keys: list[str] = []
        for n, key_form in key_forms:
            key_form.add(keys, values[n])
        arguments = [values[n] if encode is None else encode(values[n]) for n, encode in encoders]
        for n, form in others:
            form.add(arguments, values[n])
        sections = () if sections_at is None else values[sections_at]
        if not sections:
            return Call(script(name), keys, arguments)
        for section in sections:
            SECTIONS[type(section)].table.add(arguments, section)
        return Call(script(name, tuple(map(type, sections))), keys, arguments)

    call.__doc__, call.__name__ = signature.__doc__, signature.__name__
    return call


class SectionCode(NamedTuple):
    """Lua code of a class of sections.

    Attributes:
        feature: Name of the feature, which is also the name of the section's table.
        table: Form of the table.
        text: Functions of the section.
    """

    feature: str
    table: TableForm
    text: str


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
        code = SectionCode(lua.parent.name, _form(kind), lua.read_text("utf-8"))
        require_names(f"section {code.feature}", code.text, [(code.feature, code.table)], ())
        SECTIONS[kind] = code
        return kind

    return register


def _code_of(sections: Sequence[SectionCode], points: Sequence[str]) -> str:
    """Return the Lua code of sections, and the functions with which a script runs them."""
    lines, calls = [], {point: list[str]() for point in points}
    for feature, _, text in sections:
        functions = [point for point in _FUNCTION.findall(text) if point in points]
        if not functions:
            raise TypeError(f"section {feature} has no function for the points {', '.join(points)}")
        names = ", ".join(f"{feature}_{point}" for point in functions)
        lines += [f"local {names}", "do", text, f"{names} = {', '.join(functions)}", "end"]
        for point in functions:
            calls[point].append(f"{feature}_{point}({feature}, ...)")
    for point in points:
        body = f"return {' or '.join(calls[point])}" if calls[point] and point in _REFUSING else " ".join(calls[point])
        lines.append(f"local function {point}_sections(...) {body} end")
    return "".join(f"{line}\n" for line in lines)


_POINT = re.compile(r"\b(\w+)_sections\(")
"""Point at which a script runs its sections."""
_REFUSING = ("check", "validate")
"""Points at which a section can refuse a message with its reply."""
_FUNCTION = re.compile(r"^local function (\w+)\(", re.MULTILINE)


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

    def read(self, cursor: Cursor) -> str:
        """Return the Lua expression of the value at the cursor."""
        return self.expression.format(cursor.next())


@dataclass(frozen=True)
class TableForm:
    """Arguments of a NamedTuple, which the script receives as a table.

    Attributes:
        fields: Name and form of each field.
        is_optional: True if the value may be None. An argument before the fields is then '1', or '' for None.
    """

    fields: Sequence[tuple[str, Any]]
    is_optional: bool

    @cached_property
    def is_plain(self) -> bool:
        """True if the fields are arguments without encoding."""
        return all(isinstance(form, ScalarForm) and form.encode is None for _, form in self.fields)

    def add(self, arguments: list[Any], value: Any) -> None:
        """Append the arguments for `value`."""
        if self.is_optional:
            arguments.append("" if value is None else 1)
        if value is None:
            return
        if self.is_plain:
            arguments.extend(value)
            return
        for (_, form), item in zip(self.fields, value, strict=True):
            form.add(arguments, item)

    def read(self, cursor: Cursor) -> str:
        """Return the Lua expression of the table at the cursor. All fields are scalars."""
        return f"{{{', '.join(f'{name} = {form.read(cursor)}' for name, form in self.fields)}}}"

    def lines(self, target: str, cursor: Cursor) -> Iterator[str]:
        """Yield the Lua lines that assign the table at the cursor to `target`, or leave `target` nil for None."""
        if self.is_optional:
            yield cursor.move()
            yield "if ARGV[at] ~= '' then"
        scalars = [field for field in self.fields if isinstance(field[1], ScalarForm)]
        yield f"{target} = {TableForm(scalars, False).read(cursor)}"
        for name, form in self.fields[len(scalars) :]:
            if isinstance(form, ScalarForm):
                raise TypeError(f"{name}: a plain field comes before the lists and tables")
            yield from form.lines(f"{target}.{name}", cursor)
        if self.is_optional:
            yield cursor.pass_read()
            yield "end"


class ListForm(NamedTuple):
    """Arguments of a sequence, which the script receives as a list. The number of items comes first."""

    item: ScalarForm | TableForm

    def add(self, arguments: list[Any], value: Any) -> None:
        """Append the arguments for `value`."""
        arguments.append(len(value))
        for item in value:
            self.item.add(arguments, item)

    def lines(self, target: str, cursor: Cursor) -> Iterator[str]:
        """Yield the Lua lines that assign the list at the cursor to `target`."""
        yield cursor.move()
        yield f"{target} = {{}}"
        yield "for i = 1, tonumber(ARGV[at]) do"
        yield f"{target}[i] = {self.item.read(cursor)}"
        yield cursor.pass_read()
        yield "end"


class KeyForm(NamedTuple):
    """Single key or, with `is_list`, all further keys."""

    is_list: bool

    def add(self, keys: list[str], value: Any) -> None:
        """Append the keys of `value`."""
        if self.is_list:
            keys.extend(value)
        else:
            keys.append(value)


class TaskForm:
    """Keys of a task, which the script receives as a table."""

    def add(self, keys: list[str], value: Any) -> None:
        """Append the keys of `value`."""
        keys.extend(value)


class SectionsForm:
    """Sections, which follow all other arguments."""


class Cursor:
    """Position of the next argument. The Lua variable ``at`` has the position of the last argument that was read, as
    soon as the position depends on the arguments."""

    def __init__(self) -> None:
        self._base = ""
        self._read = 0

    def next(self) -> str:
        """Return the Lua expression of the next argument."""
        self._read += 1
        return f"ARGV[{self._base}{self._read}]"

    def move(self) -> str:
        """Return the Lua line that sets ``at`` to the position of the next argument."""
        self._read += 1
        return self.pass_read()

    def pass_read(self) -> str:
        """Return the Lua line that sets ``at`` to the position of the last argument that was read."""
        line = f"at = {self._base}{self._read}"
        self._base, self._read = "at + ", 0
        return line


_STRING, _NUMBER = ScalarForm("{}"), ScalarForm("tonumber({})")
_SCALARS: dict[Any, ScalarForm] = {
    str: _STRING,
    bytes: _STRING,
    Digits: _STRING,
    int: _NUMBER,
    float: ScalarForm("tonumber({})", repr),
    bool: ScalarForm("{} == '1'", int),
}


def _or_empty(encode: Callable[[Any], Argument] | None) -> Callable[[Any], Argument]:
    return lambda value: "" if value is None else value if encode is None else encode(value)


def _form(hint: Any) -> Any:
    """Return the form of a parameter with the annotation `hint`."""
    if hint is TaskKeys:
        return TaskForm()
    if hint == Sections:
        return SectionsForm()
    if hint == Key:
        return KeyForm(is_list=False)
    if get_origin(hint) is Sequence:
        (item,) = get_args(hint)
        return KeyForm(is_list=True) if item == Key else ListForm(_form(item))
    is_optional = get_origin(hint) in (Union, UnionType)
    if is_optional:
        hint = next(option for option in get_args(hint) if option is not NoneType)
    if scalar := _SCALARS.get(hint):
        expression = "({0} ~= '' and {0} or nil)" if scalar is _STRING else scalar.expression
        return ScalarForm(expression, _or_empty(scalar.encode)) if is_optional else scalar
    if isinstance(hint, type) and issubclass(hint, tuple):
        hints = get_type_hints(hint, include_extras=True)
        return TableForm([(name, _form(hints[name])) for name in hints], is_optional)
    raise TypeError(f"no argument of a script has the type {hint}")


def header(parameters: Sequence[tuple[str, Any]]) -> str:
    """Return the Lua lines that declare the parameters of a script."""
    key_position, cursor = 0, Cursor()
    declarations: list[tuple[str, str]] = []
    lines: list[str] = []
    later: list[tuple[str, TableForm | ListForm]] = []
    for name, form in parameters:
        match form:
            case TaskForm():
                fields = [f"{field} = KEYS[{key_position + n}]" for n, field in enumerate(TaskKeys.__annotations__, 1)]
                declarations.append((name, f"{{{', '.join(fields)}}}"))
                key_position += len(fields)
            case KeyForm(is_list=True):
                lines.append(f"local {name} = {{}}")
                lines.append(f"for i = {key_position + 1}, #KEYS do {name}[i - {key_position}] = KEYS[i] end")
            case KeyForm():
                key_position += 1
                declarations.append((name, f"KEYS[{key_position}]"))
            case ScalarForm() if not later:
                declarations.append((name, form.read(cursor)))
            case TableForm() | ListForm():
                later.append((name, form))
            case _:
                raise TypeError(f"{name}: a plain argument of a script comes before the lists and tables")
    if declarations:
        names, values = zip(*declarations, strict=True)
        lines.append(f"local {', '.join(names)} = {', '.join(values)}")
    if later:
        lines += [f"local {', '.join(name for name, _ in later)}", "do", "local at"]
        lines += [line for name, form in later for line in form.lines(name, cursor)]
        lines.append("end")
    return "".join(f"{line}\n" for line in lines)


def require_names(what: str, text: str, parameters: Sequence[tuple[str, Any]], points: Sequence[str]) -> None:
    """Require that a script or section uses all its parameters, and only names that are defined.

    Args:
        what: Kind and name of the text.
        text: Text of the script or section.
        parameters: Name and form of each parameter.
        points: Points at which the script runs its sections.

    Raises:
        TypeError: The names differ.
    """
    tokens = _TOKENS.findall(text)
    used = {use for _, _, use in tokens if use}
    local = {match for _, names, _ in tokens for match in _NAME.findall(names)}
    names = {name for name, _ in parameters}
    if unused := names - used:
        raise TypeError(f"{what} does not use {', '.join(sorted(unused))}")
    if unknown := used - local - names - defined_names() - {f"{point}_sections" for point in points}:
        raise TypeError(f"{what} uses {', '.join(sorted(unknown))}, which is not in its signature")
    for name, form in parameters:
        if isinstance(form, TableForm):
            known = {field for field, _ in form.fields}
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
