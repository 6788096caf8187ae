"""Code and numbers in docs/calling-from-celery.md. The code runs unchanged, and the numbers equal those of
a2a_celery."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from a2a_celery.client.calling import CallTask, progress, webhook

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "calling-from-celery.md").read_text(encoding="utf-8")


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Namespace of the documented programs, which run one after the other.

    Programs that import the app need a store and are skipped. The tests of `submit` run their calls.
    """
    monkeypatch.setenv("A2A_CALLS_SECRET", "0123456789abcdef0123456789abcdef")
    namespace: dict[str, Any] = {"__name__": "acme"}
    for program in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        if "from acme import" in program:
            continue
        code = program.replace('Celery("acme")', 'Celery("acme", broker="memory://", set_as_current=False)')
        exec(compile(code, "calling-from-celery.md", "exec"), namespace)
    return namespace


def test_its_programs_make_the_steps_that_they_say(programs: dict[str, Any]) -> None:
    researcher, writer = programs["report"]("tea").tasks
    opinion = programs["second_opinion"]("Why?")

    assert (researcher.args, researcher.kwargs["url"]) == (("Find what is new about tea.",), "research")
    assert writer.kwargs == {"url": "writer"}
    assert [step.kwargs["url"] for step in opinion.tasks] == ["research", "https://other.example.org/agent"]
    assert callable(programs["a2a_calls"])


def test_its_options_are_the_task_s() -> None:
    rows = re.findall(r"^\| (`.+?) \| (.*?) \|", PAGE, re.MULTILINE)
    documented_options = {name: default.strip("`") for names, default in rows for name in re.findall(r"`(\w+)`", names)}
    parameters = inspect.signature(CallTask.run).parameters
    real = {name: parameters[name].default for name in parameters.keys() - {"self", "content", "url", "progress"}}

    assert documented_options.keys() == real.keys()
    assert documented_options["timeout"] == f"{real['timeout']:.0f}"
    assert documented_options["unreachable_for"] == f"{real['unreachable_for']:.0f}"
    assert documented_options["on_interrupt"].strip('"') == real["on_interrupt"]


def test_its_numbers_are_the_code_s() -> None:
    text = " ".join(PAGE.split())

    assert f"at least {progress.POLL_INTERVAL_MIN:g} and at most {progress.POLL_INTERVAL_MAX:g} s" in text
    assert f"{progress.WEBHOOK_POLL_INTERVAL_MIN / 60:g} to {progress.WEBHOOK_POLL_INTERVAL_MAX / 60:g} minutes" in text
    assert progress.POLLS_PER_SECOND == 10
    assert "at most ten polls per second" in text
    assert progress.POLLS_PER_VISIBILITY_TIMEOUT == 3
    assert "at least three times within the visibility timeout" in text
    assert f"a secret of at least {webhook.MIN_SECRET_LENGTH} characters" in text
