"""Signatures of scripts: what a script receives, and which mistakes are refused when a module is imported."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pytest

from a2a_celery.lifecycle.references import RunRef, Scope
from a2a_celery.store import AsyncStore, Keys, TaskKeys, operation
from a2a_celery.store.verbs import Digits, Key, Reply, Sections, TaskId, Unsent, no_result, section, verb

Write = Callable[[str, str], None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Function that writes a script of this test's own folder of scripts."""
    shutil.copytree(operation.SCRIPTS / "lib", tmp_path / "lib")
    (tmp_path / "tests").mkdir()
    caches = (operation.script, operation.libraries, operation.defined_names)
    monkeypatch.setattr(operation, "SCRIPTS", tmp_path)
    for cache in caches:
        cache.cache_clear()
    yield lambda name, text: (tmp_path / "tests" / f"{name}.lua").write_text(text) and None
    monkeypatch.undo()
    for cache in caches:
        cache.cache_clear()


class Event(NamedTuple):
    kind: str
    at: int


class Whole(NamedTuple):
    state: int
    history: Sequence[bytes]
    events: Sequence[Event]


def received(**names: str) -> str:
    """Return a script that returns its parameters as JSON."""
    return f"\nreturn cjson.encode({{{', '.join(f'{name} = {value}' for name, value in names.items())}}})"


async def test_a_script_receives_typed_parameters_by_name(write: Write, store: AsyncStore) -> None:
    names = [
        "keys",
        "lists",
        "scope",
        "name",
        "digits",
        "count",
        "share",
        "flag",
        "missing",
        "events",
        "other",
        "whole",
        "rest",
    ]
    write("all_kinds", received(**{name: name for name in names}))

    @verb
    def _all_kinds(
        keys: TaskKeys,
        scope: Key,
        lists: Sequence[Key],
        name: str,
        digits: Digits,
        count: int | None,
        share: float,
        flag: bool,
        missing: int | None,
        events: Sequence[Event],
        other: Whole | None,
        whole: Whole | None,
        rest: Sequence[str],
    ) -> Reply[Any]:
        return Reply(json.loads)

    task = Keys("a").task("t")
    call = _all_kinds(
        task,
        "scope",
        ["one", "two"],
        name="x",
        digits=1 << 60,
        count=3,
        share=0.25,
        flag=True,
        missing=None,
        events=[Event("S", 1), Event("A", 2)],
        other=None,
        whole=Whole(4, [b"h"], [Event("U", 5)]),
        rest=["y", ""],
    )

    assert await store.run(call) == {
        "keys": dict(zip(TaskKeys.__annotations__, task, strict=True)),
        "lists": ["one", "two"],
        "scope": "scope",
        "name": "x",
        "digits": str(1 << 60),
        "count": 3,
        "share": 0.25,
        "flag": True,
        "events": [{"kind": "S", "at": 1}, {"kind": "A", "at": 2}],
        "whole": {"state": 4, "history": ["h"], "events": [{"kind": "U", "at": 5}]},
        "rest": ["y", ""],
    }


LIMIT = 7


def quoted_scope(keys: Keys, scope: Scope | None) -> str:
    """Return the prefix of the keys, and the scope."""
    return f"{keys.prefix} {scope}"


def event_of(kind: str) -> Event:
    """Return an event."""
    return Event(kind, len(kind))


async def test_a_script_receives_the_keys_of_a_deployment_and_a_run_by_name(write: Write, store: AsyncStore) -> None:
    names = ["prefix", "dispatch", "record", "run", "scope", "event", "missing", "limit"]
    values = ["prefix", "dispatch", "keys.record", "run", "scope", "event", "missing", "LIMIT"]
    write("implied", received(**dict(zip(names, values, strict=True))))

    @verb
    def _implied(
        keys: Keys,
        ref: RunRef,
        *,
        scope: Annotated[Scope | None, quoted_scope] = None,
        event: Annotated[str, event_of] | None,
        missing: Annotated[str, event_of] | None = None,
        unsent: Unsent[str],
    ) -> Reply[Any]:
        return Reply(lambda reply: [unsent, json.loads(reply)])

    unsent, values_by_name = await store.run(_implied(Keys("a"), RunRef("t", 3), event="TAS", unsent="u"))

    assert unsent == "u"
    assert values_by_name == {
        "prefix": "a",
        "dispatch": Keys("a").dispatch,
        "record": Keys("a").task("t").record,
        "run": 3,
        "scope": "a None",
        "event": {"kind": "TAS", "at": 3},
        "limit": LIMIT,
    }


async def test_a_script_receives_the_keys_of_a_task_and_its_id(write: Write, store: AsyncStore) -> None:
    write("of_task", received(log="keys.log", id="task_id"))

    @verb
    def _of_task(keys: Keys, task_id: TaskId) -> Reply[Any]:
        return Reply(json.loads)

    assert await store.run(_of_task(Keys("a"), "t 1")) == {"log": Keys("a").task("t 1").log, "id": "t 1"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("return used", "script mistaken does not use event, unused"),
        ("return used, unused, event, typo", "script mistaken uses typo, which is not in its signature"),
        ("local x = ARGV[1]\nreturn used, unused, event, x", "script mistaken uses ARGV"),
        ("return used, unused, event, dispatch", "script mistaken uses dispatch"),
        ("return used, unused, event, NO_LIMIT", "script mistaken uses NO_LIMIT"),
        ("return used, unused, event.kinds", "script mistaken uses event.kinds, which event does not have"),
    ],
)
def test_a_script_and_its_signature_have_the_same_names(write: Write, text: str, message: str) -> None:
    write("mistaken", text)

    def _mistaken(used: str, unused: str, event: Event) -> Reply[None]:
        return Reply(no_result)

    with pytest.raises(TypeError, match=message):
        verb(_mistaken)


def quoted(text: str) -> str:
    """Return a text in quotes."""
    return f"'{text}'"


class Row(NamedTuple):
    name: Annotated[str, quoted]


async def test_items_and_fields_are_converted(write: Write, store: AsyncStore) -> None:
    write("rows", received(texts="texts", rows="rows"))

    @verb
    def _rows(texts: Sequence[Annotated[str, quoted]], rows: Sequence[Row]) -> Reply[Any]:
        return Reply(json.loads)

    assert await store.run(_rows(["a", "b"], [Row("c")])) == {"texts": ["'a'", "'b'"], "rows": [{"name": "'c'"}]}


def test_an_item_cannot_be_converted_with_the_keys(write: Write) -> None:
    write("rows", "return rows")

    def _rows(rows: Sequence[Annotated[Scope, quoted_scope]]) -> Reply[None]:
        return Reply(no_result)

    with pytest.raises(TypeError, match="no argument of a script has the type"):
        verb(_rows)


FLAG = True


def test_a_signature_that_no_script_can_receive_is_refused(write: Write) -> None:
    def _twice(keys: Keys, ref: RunRef, task_id: TaskId) -> Reply[None]:
        return Reply(no_result)

    def _later(name: str, keys: Keys) -> Reply[None]:
        return Reply(no_result)

    def _flag(name: str) -> Reply[None]:
        return Reply(no_result)

    write("twice", "return keys, run")
    write("later", "return name, dispatch")
    write("flag", "return name, FLAG")

    with pytest.raises(TypeError, match="script twice would receive keys twice"):
        verb(_twice)
    with pytest.raises(TypeError, match="the parameter of the type Keys comes first"):
        verb(_later)
    with pytest.raises(TypeError, match="script flag uses FLAG, which is neither a number nor a text"):
        verb(_flag)


async def test_the_order_of_the_parameters_does_not_matter(write: Write, store: AsyncStore) -> None:
    write("order", received(list="list", last="last", key="key"))

    @verb
    def _order(list: Sequence[str], last: str, key: Key) -> Reply[Any]:
        return Reply(json.loads)

    assert await store.run(_order(["a"], "b", "k")) == {"list": ["a"], "last": "b", "key": "k"}


def test_a_type_without_a_form_in_lua_is_refused(write: Write) -> None:
    write("odd", "return names")

    def _odd(names: dict[str, str]) -> Reply[None]:
        return Reply(no_result)

    with pytest.raises(TypeError, match="no argument of a script has the type"):
        verb(_odd)


def test_a_call_names_all_arguments(write: Write) -> None:
    write("two", "return one, other")

    @verb
    def _two(one: str, other: str) -> Reply[None]:
        return Reply(no_result)

    with pytest.raises(TypeError, match="missing 1 required positional argument: 'other'"):
        _two("a")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'another'"):
        _two("a", other="b", another="c")  # type: ignore[call-arg]


SECTION = """
-- Refuse the name "taken".
local function check(feature, name)
  if name == feature.name then return {'taken'} end
end

local function written(feature, list)
  redis.call('RPUSH', list, feature.name)
  return feature.name
end
"""


@pytest.fixture
def sections(tmp_path: Path) -> Callable[[str, str], Any]:
    """Function that creates a section of a feature, and returns it for a name."""

    def create(feature: str, name: str) -> Any:
        (tmp_path / feature).mkdir(exist_ok=True)
        lua = tmp_path / feature / "section.lua"
        lua.write_text(SECTION.replace("feature", feature))

        class Named(NamedTuple):
            name: str

        return section(lua)(Named)(name)

    return create


SCRIPT = """
local refused = check_sections(name)
if refused then return refused end
redis.call('RPUSH', list, name)
local names = {written_sections(list)}
return {redis.call('LRANGE', list, 0, -1), unpack(names)}
"""


async def test_the_sections_of_a_call_run_in_their_order(
    write: Write, store: AsyncStore, sections: Callable[[str, str], Any]
) -> None:
    write("add", SCRIPT)

    @verb
    def _add(list: Key, name: str, sections: Sections) -> Reply[Any]:
        return Reply(lambda reply: reply)

    async def add(name: str, *parts: Any) -> Any:
        await store.redis.delete("l")
        return await store.run(_add("l", name, parts))

    first, second = sections("first", "x"), sections("second", "y")
    assert await add("a") == [[b"a"]]
    assert await add("a", first, second) == [[b"a", b"x", b"y"], b"x", b"y"]
    assert await add("a", second) == [[b"a", b"y"], b"y"]
    assert await add("x", second, first) == [b"taken"]
    assert not await store.redis.exists("l"), "a refused call writes nothing"


def test_a_call_has_one_section_of_a_feature(write: Write, sections: Callable[[str, str], Any]) -> None:
    write("add", SCRIPT)

    @verb
    def _add(list: Key, name: str, sections: Sections) -> Reply[Any]:
        return Reply(lambda reply: reply)

    with pytest.raises(TypeError, match="script add has two sections of the feature first"):
        _add("l", "a", [sections("first", "x"), sections("first", "y")])


def test_a_call_without_sections_has_no_code_of_sections(write: Write, sections: Callable[[str, str], Any]) -> None:
    write("add", SCRIPT)

    @verb
    def _add(list: Key, name: str, sections: Sections) -> Reply[Any]:
        return Reply(lambda reply: reply)

    with_section = _add("l", "a", [sections("first", "x")])
    assert "taken" in with_section.script.text
    assert "taken" not in _add("l", "a", []).script.text
    assert _add("l", "a", []).args == ["a"]


def test_a_section_without_a_function_for_the_points_of_a_script_does_not_take_part(
    write: Write, sections: Callable[[str, str], Any]
) -> None:
    write("close", "closed_sections()\nreturn name")

    @verb
    def _close(name: str, sections: Sections) -> Reply[Any]:
        return Reply(lambda reply: reply)

    call = _close("a", [sections("first", "x")])
    assert call.args == ["a"]
    assert call.script is _close("a", []).script


def test_a_section_uses_only_names_that_are_defined(tmp_path: Path) -> None:
    class Named(NamedTuple):
        name: str

    for text, message in [
        ("local function check(feature) return feature.names end", "section feature uses feature.names"),
        ("local function check(feature) return feature.name, typo end", "section feature uses typo"),
    ]:
        lua = tmp_path / "feature" / "section.lua"
        lua.parent.mkdir(exist_ok=True)
        lua.write_text(text)
        with pytest.raises(TypeError, match=message):
            section(lua)(Named)
