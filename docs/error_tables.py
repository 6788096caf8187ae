"""Tables of docs/errors.md that are read from the code: codes of protocol errors, and texts of errors.

The page contains the table of codes, which a test compares with `codes_table`. A hook adds the lists of texts.

A text is the argument of an error's constructor. `PLACEHOLDER` replaces each value that the code inserts.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from a2a.utils.errors import A2A_ERROR_MAPPING, JSON_RPC_ERROR_CODE_MAP, JSONParseError

import a2a_celery.gateway.protocol_errors

PACKAGE = Path(a2a_celery.__file__).parent
PLACEHOLDER = "…"
NO_PLAIN_ERROR = "—"
REQUEST_PACKAGES = ("operations", "gateway", "store", "features")
"""Packages whose protocol errors are responses to requests."""

SYSTEM_ERROR = -32603
SEPARATE_CODES = {
    "REQUEST_TOO_LARGE": (-32600, "413", "RESOURCE_EXHAUSTED"),  # each binding refuses it before it parses the request
}
INVALID_JSON = ("INVALID_JSON", JSON_RPC_ERROR_CODE_MAP[JSONParseError], NO_PLAIN_ERROR, NO_PLAIN_ERROR)
CLASSES = {mapping.reason: error.__name__ for error, mapping in A2A_ERROR_MAPPING.items()}
SHORT_FORMS = {"invalid": "InvalidParamsError", "not_found": "TaskNotFoundError"}
"""Functions that return an error, each with the class of the error."""

REFUSED_STARTS = ("ConfigError", "SystemExit")
COMMAND_ERRORS = ("ClickException", "UsageError", "BadParameter")
FIELDS = "errors"
"""Key of invalid fields, which clients receive as a google.rpc.BadRequest."""

REPOSITORY_ONLY = re.compile(r"^<!-- repository -->\n.*?^<!-- site -->\n", re.MULTILINE | re.DOTALL)
"""Lines of the page that the site leaves out."""

MIN_WORDS = 3
"""Minimum number of words in a text that identifies its error. A shorter text is only a frame around inserted
values."""


def codes() -> list[tuple[str, int, str, str]]:
    """Return the reason, JSON-RPC code, HTTP status and gRPC status of each protocol error."""
    found = []
    for error, mapping in A2A_ERROR_MAPPING.items():
        code, http, grpc = JSON_RPC_ERROR_CODE_MAP.get(error, SYSTEM_ERROR), str(mapping.http_code), mapping.grpc_status
        found.append((mapping.reason, *SEPARATE_CODES.get(mapping.reason, (code, http, grpc))))
    return [*found, INVALID_JSON]


def codes_table() -> Iterator[str]:
    """Yield the lines of the table of codes, to copy into the page: ``python docs/error_tables.py`` prints them."""
    details = error_details()
    yield "| reason | JSON-RPC | HTTP+JSON | gRPC | keys of the details |"
    yield "| --- | --- | --- | --- | --- |"
    for reason, code, http, grpc in codes():
        keys = ", ".join(f"`{key}`" for key in sorted(details.get(CLASSES.get(reason, ""), ())))
        yield f"| `{reason}` | {code} | {http} | {grpc} | {keys} |"


def request_texts() -> Iterator[str]:
    """Yield a list of texts for each protocol error."""
    texts = error_texts(tuple(CLASSES.values()), lambda module: module.parts[0] in REQUEST_PACKAGES)
    for reason, name in sorted(CLASSES.items()):
        if texts[name]:
            yield from ("", f"#### {reason}", "", *_bullets(texts[name]))


def refusal_texts() -> Iterator[str]:
    """Yield a list of texts of refused starts for each package and module of `a2a_celery`."""
    modules = sorted({path.relative_to(PACKAGE).parts[0] for path in PACKAGE.rglob("*.py")})
    for top in modules:
        texts = error_texts(REFUSED_STARTS, lambda module, top=top: module.parts[0] == top)
        if found := set().union(*texts.values()):
            yield from ("", f"#### a2a_celery.{top.removesuffix('.py')}", "", *_bullets(found))


def command_texts() -> Iterator[str]:
    """Yield the list of the commands' error texts."""
    texts = error_texts(COMMAND_ERRORS, lambda module: module.parts[0] == "cli" or module.name == "command.py")
    yield from ("", *_bullets(set().union(*texts.values())))


TEXTS: dict[str, Callable[[], Iterator[str]]] = {
    "request texts": request_texts,
    "refusal texts": refusal_texts,
    "command texts": command_texts,
}
"""Lists by the name in their marker, ``<!-- generated: name -->``."""


def with_texts(markdown: str) -> str:
    """Return a page with each marker replaced by its list, and without sentences that are only true in the
    repository."""
    markdown = REPOSITORY_ONLY.sub("", markdown)
    for name, table in TEXTS.items():
        markdown = markdown.replace(f"<!-- generated: {name} -->", "\n".join(table()).strip("\n"))
    return markdown


def error_texts(names: tuple[str, ...], is_read: Callable[[Path], bool]) -> defaultdict[str, set[str]]:
    """Return the texts of the errors `names`, by class, in the modules that `is_read` selects."""
    texts: defaultdict[str, set[str]] = defaultdict(set)
    for name, call, strings in _errors(is_read):
        if name not in names:
            continue
        arguments = [text for node in call.args for text in _texts(node, strings)]
        if _name(call) == "invalid":
            arguments = [": ".join(arguments)] if len(arguments) == len(call.args) else []
        texts[name] |= {text for text in arguments if _words(text) >= MIN_WORDS}
    return texts


def error_details() -> defaultdict[str, set[str]]:
    """Return the keys of the details of each protocol error, by class."""
    keys: defaultdict[str, set[str]] = defaultdict(set)
    for name, call, strings in _errors(lambda module: module.parts[0] in REQUEST_PACKAGES):
        for keyword in call.keywords:
            value = keyword.value
            for node in strings.get(value.id, []) if isinstance(value, ast.Name) else [value]:
                if keyword.arg == "data" and isinstance(node, ast.Dict):
                    keys[name] |= {str(key.value) for key in node.keys if isinstance(key, ast.Constant)} - {FIELDS}
    return keys


Values = dict[str, list[ast.expr]]
"""Values that a module or a function assigns to each name."""


def _errors(is_read: Callable[[Path], bool]) -> Iterator[tuple[str, ast.Call, Values]]:
    """Yield each call in the selected modules with the name of its function or class, and the values of names."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if is_read(path.relative_to(PACKAGE)):
            yield from _calls(path)


@cache
def syntax_tree(path: Path) -> ast.Module:
    """Parse a module."""
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def _calls(path: Path) -> list[tuple[str, ast.Call, Values]]:
    """Return the calls in the functions of a module; see `_errors`."""
    module = syntax_tree(path)
    constants = _assigned(module.body)
    calls = []
    for function in ast.walk(module):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            nodes = list(ast.walk(function))
            values = constants | _assigned(nodes)
            for call in nodes:
                if isinstance(call, ast.Call):
                    calls.append((SHORT_FORMS.get(_name(call), _name(call)), call, values))
    return calls


def _name(call: ast.Call) -> str:
    """Return the name of the function or method, or "" if any other expression is called."""
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def _assigned(nodes: list[ast.stmt] | list[ast.AST]) -> Values:
    values: defaultdict[str, list[ast.expr]] = defaultdict(list)
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            values[node.targets[0].id].append(node.value)
    return dict(values)


def _texts(node: ast.expr, values: Values) -> list[str]:
    """Return the texts that `node` can have: several for a name that a function assigns more than once."""
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.Name(id=name) if name in values:
            return [text for value in values[name] if not isinstance(value, ast.Name) for text in _texts(value, values)]
        case ast.JoinedStr(values=parts):
            return ["".join(_part(part, values) for part in parts)]
        case ast.BinOp(left=left, right=right):
            return ["".join(text for side in (left, right) for text in _texts(side, values)[:1])]
        case _:
            return []


def _part(part: ast.expr, values: Values) -> str:
    """Return a piece of an f-string: its text, the text of a constant, or `PLACEHOLDER`."""
    if isinstance(part, ast.Constant):
        return str(part.value)
    inserted = part.value if isinstance(part, ast.FormattedValue) else part
    is_constant = isinstance(inserted, ast.Name) and inserted.id.isupper()
    texts = _texts(inserted, values) if is_constant else []
    return texts[0] if texts and texts[0] else PLACEHOLDER


def _words(text: str) -> int:
    return sum(any(character.isalpha() for character in word) for word in text.split())


def _bullets(texts: set[str]) -> Iterator[str]:
    for text in sorted(texts, key=str.casefold):
        quotes = "``" if "`" in text else "`"
        space = " " if quotes == "``" else ""
        yield f"- {quotes}{space}{' '.join(text.split())}{space}{quotes}"


if __name__ == "__main__":
    print(*codes_table(), sep="\n")
