"""Libraries of the store's Lua scripts. A required library must exist, and is included once and in order."""

from __future__ import annotations

import pytest

from a2a_celery.store.operation import link_script, script

LIBRARIES = {
    "a": "local a = 1",
    "b": "-- requires: a\nlocal b = a -- one\n\n-- Return a.\nlocal function unused()\n  return a\nend",
    "c": "-- requires: a, b\nlocal function c()\n  return a + b\nend",
}


def test_a_definition_is_included_once_and_before_its_users() -> None:
    text = "-- requires: c, a\nreturn c()"

    definitions = ["local a = 1", "local b = a", "", "local function c()", "  return a + b", "end"]
    assert link_script("s", text, LIBRARIES) == "\n".join([*definitions, text])


def test_an_unused_definition_is_left_out() -> None:
    assert link_script("s", "-- requires: b\nreturn 1 -- a", LIBRARIES) == "-- requires: b\nreturn 1 -- a"


def test_a_script_without_libraries_is_unchanged() -> None:
    assert link_script("s", "return 1", LIBRARIES) == "return 1"


@pytest.mark.parametrize("user", ["s", "d"])
def test_an_unknown_library_is_an_error_that_names_its_user(user: str) -> None:
    text = "-- requires: x" if user == "s" else "-- requires: d"

    with pytest.raises(ValueError, match=f"^script s: {user} requires 'x', which is not a library$"):
        link_script("s", text, LIBRARIES | {"d": "-- requires: x"})


def test_libraries_that_require_each_other_are_an_error() -> None:
    circle = {"a": "-- requires: b", "b": "-- requires: a"}

    with pytest.raises(ValueError, match=r"^script s: these libraries require each other: a, b, a$"):
        link_script("s", "-- requires: a", circle)


def test_a_script_has_the_tables_of_the_lifecycle_that_it_requires() -> None:
    assert "local TERMINAL = {" in script("append").text
    assert "local TERMINAL = {" not in script("read_log").text
