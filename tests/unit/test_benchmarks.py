"""Evaluation of benchmark results: ratios, targets, rounds, tables, charts, and detection of collapses."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.__main__ import measured
from benchmarks.cancel import at
from benchmarks.collapse import collapsed
from benchmarks.environment import Environment, Options
from benchmarks.measures import MEASURES
from benchmarks.pages import BEGIN, END, PICTURE, RECORDED, Record, as_json, marked, pages, recorded
from benchmarks.picture import picture
from benchmarks.results import Ratio, Result, Target
from benchmarks.rounds import Contender, interleaved
from benchmarks.table import processor_table, summary_table, table

ROOT = Path(__file__).resolve().parents[2]


def result(project: list[float], *, more_is_better: bool = True, **peers: list[float]) -> Result:
    """Return a result with the given values and a target for each peer."""
    return Result(
        name="echo",
        what="blocking echoes",
        unit="a second",
        figures={"a2a-celery": project, **peers},
        more_is_better=more_is_better,
        targets=[Target(0.8, peer, at_least=more_is_better) for peer in peers],
    )


@pytest.mark.parametrize(
    ("count", "percent", "value"), [(100, 99, 99), (200, 99, 198), (201, 99, 199), (2, 50, 1), (1, 99, 1)]
)
def test_a_percentile_is_that_of_the_nearest_rank(count: int, percent: int, value: int) -> None:
    assert at([float(number) for number in range(1, count + 1)], percent) == value


def test_a_ratio_is_that_of_medians_and_its_spread_that_of_rounds() -> None:
    benchmark = result([100, 120, 140], floor=[200, 100, 280])

    assert benchmark.ratio("floor") == Ratio(median=120 / 200, low=0.5, high=1.2)


def test_a_peer_with_fewer_rounds_is_compared_with_as_many() -> None:
    benchmark = result([100, 120, 900], sdk=[50])

    assert benchmark.ratio("sdk") == Ratio(median=120 / 50, low=2, high=2)


@pytest.mark.parametrize(
    ("at_least", "value", "expected"), [(True, 2, True), (True, 1.9, False), (False, 2, True), (False, 2.1, False)]
)
def test_a_target_is_met_at_its_limit(at_least: bool, value: float, expected: bool) -> None:
    assert Target(2, at_least=at_least).is_met(value) is expected


def test_a_target_without_a_peer_compares_our_own_value() -> None:
    benchmark = Result("cancel", "a cancel", "ms", {"a2a-celery": [19, 20, 30]}, False, [Target(20, at_least=False)])

    assert benchmark.as_json()["targets"] == [{"beside": None, "at_most": 20, "met": True}]


def test_the_json_has_ratios_targets_and_every_value() -> None:
    output = json.loads(json.dumps(result([80], floor=[100], sdk=[400]).as_json()))

    assert output["figures"] == {"a2a-celery": [80], "floor": [100], "sdk": [400]}
    assert output["ratios"]["sdk"] == {"median": 0.2, "low": 0.2, "high": 0.2}
    assert [(target["beside"], target["met"]) for target in output["targets"]] == [("floor", True), ("sdk", False)]


def test_a_target_beside_a_peer_that_was_not_measured_is_left_out() -> None:
    benchmark = Result("echo", "", "", {"a2a-celery": [1]}, True, [Target(10, "cluster")])

    assert benchmark.as_json()["targets"] == []
    assert "≥ 10" not in table([benchmark])


def test_each_round_measures_every_candidate_after_a_warm_up_round() -> None:
    turns: list[str] = []

    def taking(name: str, figures: Iterator[float]) -> Callable[[], float]:
        def measure() -> float:
            turns.append(name)
            return next(figures)

        return measure

    a, b = Contender("a", taking("a", iter([99, 1, 2]))), Contender("b", taking("b", iter([99, 3])), most=1)
    measurements = interleaved(2, [a, b])

    assert turns == ["a", "b", "a", "b", "a"]
    assert measurements.figures == {"a": [1, 2], "b": [3]}
    assert measurements.processor == {}


def test_processor_time_is_that_of_each_request() -> None:
    def works() -> float:
        began = os.times().user
        while os.times().user < began + 0.1:
            sum(range(1000))
        return 1.0

    measurements = interleaved(1, [Contender("a", works, {"this": os.getpid()}, requests=10)])

    assert measurements.processor["a"]["this"] >= 5  # about 10; the kernel counts CPU time in ticks


def test_the_table_is_markdown_with_a_row_for_each_peer() -> None:
    lines = table([result([80], floor=[100], sdk=[400])]).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]

    assert len({len(line) for line in lines}) == 1, "padded"
    assert set("".join(cells[1])) == {"-"}
    assert cells[2:] == [
        ["echo: blocking echoes", "0.8 × floor", "0.8 to 0.8", "≥ 0.8", "met", "80 a second", "floor: 100"],
        ["", "0.2 × sdk", "0.2 to 0.2", "≥ 0.8", "missed", "", "sdk: 400"],
    ]


def test_the_summary_has_one_row_for_each_result() -> None:
    single_result = Result("cancel", "cancel of a silent agent", "ms", {"a2a-celery": [3.31, 3.39]}, False)
    lines = summary_table([result([80], floor=[100], sdk=[400]), single_result]).splitlines()

    assert [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]] == [
        ["blocking echoes", "80 a second", "floor 100, sdk 400"],
        ["cancel of a silent agent", "3.35 ms", ""],
    ]


def test_processor_time_has_a_separate_table_or_none() -> None:
    cpu_times = {"a2a-celery": {"gateway": 3.14159, "redis": 1.0}}

    assert processor_table([result([1])]) == ""
    assert "gateway 3.14, redis 1.00" in processor_table(
        [Result("echo", "", "", {"a2a-celery": [1]}, True, processor=cpu_times)]
    )


def test_the_picture_has_a_panel_for_each_result_with_curves() -> None:
    curves = {
        "a2a-celery": [(1_000, 0.1), (16_000, 0.1)],
        "a < b": [(1_000, 0.5), (16_000, 1.5)],
        "one": [(1_000, 0.0)],
    }
    grows = Result(
        "growth", "time & chunk", "times", {"a2a-celery": [1]}, False, curves=curves, along="chunks", curve_unit="ms"
    )

    svg = ElementTree.fromstring(picture([result([1]), grows, grows]))
    namespace = "{http://www.w3.org/2000/svg}"
    lines = svg.findall(f"{namespace}polyline")
    project, other = (
        [[*map(float, point.split(","))] for point in line.attrib["points"].split()] for line in lines[:2]
    )

    assert len(lines) == 2 * len(curves)
    assert project[0][1] == project[1][1], "flat"
    assert other[1][1] < other[0][1] < project[0][1], "up is more"
    assert project[0][0] < project[1][0]
    assert {"time & chunk", "a < b", "chunks", "16,000"} <= {text.text for text in svg.findall(f"{namespace}text")}


def test_labels_of_curves_with_equal_ends_do_not_overlap() -> None:
    curves = {"a2a-celery": [(1, 0.1), (10, 1.0)], "floor": [(1, 0.1), (10, 1.0)]}
    svg = ElementTree.fromstring(picture([Result("growth", "", "", {"a2a-celery": [1]}, False, curves=curves)]))

    heights = [float(text.attrib["y"]) for text in svg.iter("{http://www.w3.org/2000/svg}text") if text.text in curves]

    assert abs(heights[0] - heights[1]) >= 12


@pytest.mark.parametrize(
    ("project", "more_is_better", "falls"),
    [
        (51, True, False),
        (49, True, True),
        (900, True, False),
        (199, False, False),
        (201, False, True),
        (1, False, False),
    ],
)
def test_a_ratio_twice_as_bad_as_recorded_is_a_collapse(project: float, more_is_better: bool, falls: bool) -> None:
    current = result([project], more_is_better=more_is_better, floor=[100])
    others = Result("another", "", "", {"a2a-celery": [1], "floor": [1]}, True)
    records = [others, result([100], more_is_better=more_is_better, floor=[100], unmeasured=[100])]

    assert bool(collapsed([current], records)) is falls


def test_one_good_round_is_no_collapse() -> None:
    slow_result, outlier = result([10, 10, 10], floor=[100, 100, 100]), result([10, 10, 60], floor=[100, 100, 100])
    records = [result([100], floor=[100])]

    assert collapsed([slow_result], records) == ["echo: a2a-celery / floor is 0.10 at best, and was 1.00 when recorded"]
    assert collapsed([outlier], records) == []


def test_recorded_results_are_read_unchanged(tmp_path: Path) -> None:
    file = tmp_path / "table.json"
    curves = {"a2a-celery": [[1.0, 2.0], [2.0, 3.0]]}
    idle = Result("idle", "memory", "KiB", {"a2a-celery": [2.0]}, False, [Target(16, at_least=False)], curves=curves)
    record = Record("4 cores", [result([80], floor=[100]), idle])

    file.write_text(as_json(record), encoding="utf-8")

    assert recorded(file) == record


def test_results_of_measures_in_ci_are_recorded() -> None:
    short = re.search(r"^SHORT = \((.*)\)", (ROOT / "benchmarks/measures/__init__.py").read_text(), re.MULTILINE)
    assert short is not None

    assert set(re.findall(r'"(.+?)"', short[1])) <= {result.name for result in recorded(RECORDED).results}
    assert "-m benchmarks --short" in (ROOT / ".ci/run").read_text()


def test_pages_and_picture_show_the_recorded_results() -> None:
    for page, body in pages(recorded()).items():
        text = page.read_text(encoding="utf-8")
        assert marked(text, body) == text, page.name
    assert PICTURE.read_text(encoding="utf-8") == picture(recorded().results)


def test_a_body_replaces_the_text_between_unique_marks_of_a_page() -> None:
    assert marked(f"a\n{BEGIN}old{END}\nb", "new") == f"a\n{BEGIN}\n\nnew\n\n{END}\nb"
    for text in ("", BEGIN, END, f"{END}{BEGIN}", f"{BEGIN}{END}{BEGIN}{END}"):
        with pytest.raises(ValueError, match="one <!-- measured"):
            marked(text, "new")


def test_the_page_names_every_measure_and_option() -> None:
    page = (ROOT / "docs/performance.md").read_text(encoding="utf-8")
    source = "".join(path.read_text() for path in sorted((ROOT / "benchmarks/measures").glob("*.py")))
    options = set(re.findall(r'"(--[\w-]+)"', (ROOT / "benchmarks/__main__.py").read_text()))
    names = set(re.findall(r'name="([\w-]+)"', source))

    assert names <= set(re.findall(r"`([\w-]+)`", page))
    assert options == set(re.findall(r"`(--[\w-]+)", page))


def test_a_run_names_each_benchmark_when_it_begins(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    headings: list[str] = []

    def measure(_: Environment) -> list[Result]:
        headings.append(capsys.readouterr().err)
        return [result([1], floor=[2])]

    monkeypatch.setitem(MEASURES, "first", measure)
    monkeypatch.setitem(MEASURES, "second", measure)
    monkeypatch.setenv("OTEL_INSTRUMENTATION_A2A_SDK_ENABLED", "false")

    results, failures = measured(["first", "second"], Options())

    assert headings == ["[1 of 2] first …\n", "[2 of 2] second …\n"]
    assert (len(results), failures) == (2, [])
