"""Mutation testing: operators for Python and Lua, sampling, selection of tests, and the report."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.tools import mutate
from tests.tools.mutants import Mutant, edits, mutants_in, sample
from tests.tools.selection import cap_tests, function_lines, node_id


def mutations(source: str, suffix: str = ".py") -> set[tuple[str, str, str]]:
    """Return the operator, the original line and the mutated line of each mutation."""
    return {(edit.operator, *edit.lines(source)) for edit in edits(source, suffix)}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a < b", {("comparison", "a < b", "a <= b")}),
        ("a >= b", {("comparison", "a >= b", "a > b")}),
        ("(a) != (b)", {("comparison", "(a) != (b)", "(a) == (b)")}),
        ("a < b == c", {("comparison", "a < b == c", "a <= b == c"), ("comparison", "a < b == c", "a < b != c")}),
        ("a is b", set()),
        ("a and b", {("boolean", "a and b", "a or b")}),
        ("band or (cor)", {("boolean", "band or (cor)", "band and (cor)")}),
        ("not a", {("not", "not a", "a")}),
        ("x = not(a)", {("not", "x = not(a)", "x = (a)")}),
        ("a + b", {("arithmetic", "a + b", "a - b")}),
        ("-a", set()),
        ("x = 41", {("number", "x = 41", "x = 42")}),
        ("x = 0.5", {("number", "x = 0.5", "x = 1.5")}),
        ("x = True", {("boolean constant", "x = True", "x = False")}),
        ('x = "a < 1"', set()),
        ("x: Literal[1] = y", set()),
        ('"""Docstring."""', set()),
        ("call()", {("statement", "call()", "pass")}),
        ("ü = 'äöü' + b", {("arithmetic", "ü = 'äöü' + b", "ü = 'äöü' - b")}),
        ("x = (a and  # or\n     b)", {("boolean", "x = (a and  # or", "x = (a or  # or")}),
        ("x = (a  # or\n     and b)", set()),
    ],
)
def test_a_python_source_has_these_mutants(source: str, expected: set[tuple[str, str, str]]) -> None:
    assert mutations(source) == expected


def test_a_python_function_loses_its_result_and_its_awaited_call() -> None:
    source = "async def f():\n    await g()\n    return h\n"

    assert mutations(source) == {("statement", "await g()", "pass"), ("return", "return h", "return None")}


def test_a_python_mutant_knows_the_lines_of_its_statement() -> None:
    source = "X = 1\ndef f(a=2):\n    g(\n        3,\n        4,\n    )\n"

    positions = {edit.replacement: (edit.statement_lines, edit.in_function) for edit in edits(source, ".py")}

    assert positions["2"] == ((1, 1), False)
    assert positions["3"] == ((2, 2), False)
    assert positions["5"] == ((3, 5), True)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("if a == b then", {("comparison", "if a == b then", "if a ~= b then")}),
        ("if a ~= b then", {("comparison", "if a ~= b then", "if a == b then")}),
        ("return a <= b", {("comparison", "return a <= b", "return a < b")}),
        ("return a or b", {("boolean", "return a or b", "return a and b")}),
        ("if not a then", {("not", "if not a then", "if a then")}),
        ("local a = KEYS[1]", {("number", "local a = KEYS[1]", "local a = KEYS[2]")}),
        ("local a1 = 'x and 1' .. \"not\" -- 2 < 3", set()),
        ("--[[ a == 1\n not b ]] local a = b", set()),
        ("redis.call('DEL', key)", {("statement", "redis.call('DEL', key)", "")}),
        ("redis.call('SET', f(a),\n  b) -- why", {("statement", "redis.call('SET', f(a),\n  b) -- why", "-- why")}),
        ("local a = redis.call('GET', key)", set()),
        ("redis.call('GET', a)[b]", set()),
    ],
)
def test_a_lua_source_has_these_mutants(source: str, expected: set[tuple[str, str, str]]) -> None:
    assert mutations(source, ".lua") == expected


def test_a_mutant_s_id_names_its_file_and_position(tmp_path: Path) -> None:
    script = tmp_path / "a2a_celery" / "store" / "scripts" / "s.lua"
    script.parent.mkdir(parents=True)
    script.write_text("local a\nif a == b then end\n")

    (mutant,) = mutants_in(tmp_path, ["store/scripts"])["store/scripts"]

    assert mutant.id == "store/scripts/s.lua:2:6:comparison"
    assert mutants_in(tmp_path, ["store/scripts/s.lua"])["store/scripts/s.lua"][0].id == mutant.id


def test_a_sample_is_repeatable_and_has_as_many_mutants_of_each_package() -> None:
    def package(name: str, numbers: int) -> list[Mutant]:
        source = "\n".join(f"x = {number}" for number in range(numbers))
        return [Mutant(name, f"a2a_celery/{name}.py", edit, source) for edit in edits(source, ".py")]

    mutants = {"a": package("a", 50), "b": package("b", 200), "c": package("c", 2)}
    chosen_mutants = sample(mutants, 20, seed=3)

    assert Counter(mutant.package for mutant in chosen_mutants) == {"a": 7, "b": 7, "c": 2}
    assert len({mutant.id for mutant in chosen_mutants}) == 16
    assert chosen_mutants == sample(mutants, 20, seed=3) != sample(mutants, 20, seed=4)


def test_a_coverage_context_names_the_test_that_ran_or_started_the_process() -> None:
    assert node_id("tests/a.py::test[x|y]") == "tests/a.py::test[x|y]"
    assert node_id("tests/a.py::test (setup)|tests/b.py::test (call)") == "tests/b.py::test"
    assert node_id("none|tests/b.py::test") == "tests/b.py::test"
    assert node_id("none") == node_id("") == ""


def test_lines_of_functions_do_not_run_at_import() -> None:
    source = "STEPS = [\n    1,\n]\nasync def f(\n    a=2,\n):\n    def g():\n        h()\n    g()\nX = f"

    assert function_lines(source) == {7, 8, 9}


def test_a_selection_ends_at_its_expected_duration_and_is_never_empty() -> None:
    seconds = {"slow": 5.0, "fast": 1.0}

    assert cap_tests(["fast", "fast", "slow"], seconds, 2.5) == ["fast", "fast"]
    assert cap_tests(["slow", "fast"], seconds, 2.5) == ["slow"]
    assert cap_tests([], seconds, 2.5) == []


def record(name: str, tier: str, status: str) -> mutate.Record:
    return {
        "id": name, "package": "push", "tier": tier, "status": status, "before": f"{name} < 1", "after": f"{name} <= 1",
        "tests": 3, "reaching": 4,
    }  # fmt: skip


def test_a_wider_tier_kills_what_a_narrower_tier_kills() -> None:
    records = [
        record("a", "change", "killed"),
        record("b", "change", "timeout"),
        record("b", "change", "killed"),
        record("c", "change", "survived"),
        record("c", "merge", "killed"),
        record("d", "change", "uncovered"),
        record("d", "merge", "survived"),
    ]

    lines = mutate.report(records).splitlines()

    assert [line.split()[2:] for line in lines if " total " in line] == [
        ["4", "2", "1", "1", "50.0"],
        ["4", "3", "1", "0", "75.0"],
    ]
    assert "merge d survived, 3 of 4 tests" in lines
    assert "  - d < 1" in lines
    assert "  + d <= 1" in lines
    assert not any(line.startswith("merge c ") for line in lines)


def test_a_timeout_is_listed_and_is_no_result() -> None:
    lines = mutate.report([record("a", "change", "timeout"), record("b", "change", "killed")]).splitlines()

    assert [line.split()[2:] for line in lines if " total " in line] == [["1", "1", "0", "0", "100.0"]]
    assert "change a timeout, 3 of 4 tests" in lines


def test_a_mutant_without_a_result_in_a_tier_is_judged() -> None:
    assert mutate.status_in("change", [record("a", "change", "timeout")]) is None
    assert mutate.status_in("change", [record("a", "change", "error 4")]) is None
    records = [record("a", "change", "survived")]

    assert mutate.status_in("change", records) == "survived"
    assert mutate.status_in("merge", records) is None
    assert mutate.status_in("change", [record("a", "merge", "killed")]) is None


@pytest.mark.parametrize(
    ("output", "failure"),
    [
        ("..F\nFAILED tests/a.py::test[x - y] - assert [1] == [2]\n1 failed\n", "tests/a.py::test[x - y]"),
        ("ERROR tests/a.py::test - OSError\n", "tests/a.py::test"),
        ("ERROR tests/a.py\n", "tests/a.py"),
        ("ImportError while loading conftest '/tmp/x/tests/conftest.py'.\n", "tests/conftest.py"),
        ("ERROR: Unknown marker(s) in '-m' expression\n", None),
        ("3 passed\n", None),
    ],
)
def test_only_a_failed_test_or_import_kills_a_mutant(output: str, failure: str | None) -> None:
    assert mutate.failed_test(output) == failure
