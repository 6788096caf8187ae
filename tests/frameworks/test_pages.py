"""Examples and versions in docs/frameworks. Each example runs unchanged, and the versions match those of the extras."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from a2a.utils.errors import InvalidParamsError
from celery import Celery

from a2a_celery import A2A
from a2a_celery.frameworks import conversation
from a2a_celery.testing import AgentTester
from tests.support import ROOT
from tests.support.framework_pages import FOLDER, MODULE, answer_in_parts, book_a_table, imported_example, text_of

INDEX = (FOLDER / "index.md").read_text(encoding="utf-8")
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]

FRAMEWORKS = ("adk", "agent-framework", "strands", "pydantic-ai", "openai-agents", "langgraph", "llamaindex", "crewai")
"""Extras of the table, each with a page of its name."""
IN_OTHER_ENVIRONMENT = "crewai"
"""Page whose example runs in tests/crewai."""
PAGES = sorted(page.stem for page in FOLDER.glob("*.md") if page.stem not in ("index", IN_OTHER_ENVIRONMENT))


@pytest.mark.parametrize("page", PAGES)
async def test_the_example_asks_and_books(page: str, tmp_path: Path) -> None:
    with imported_example(page, tmp_path) as a2a:
        greeting, (asking, question), booking = await book_a_table(page, a2a)

    assert greeting == ("COMPLETED", "You said: hello.")
    assert asking == "INPUT_REQUIRED"
    assert booking == ("COMPLETED", "Done: a table is booked.")
    assert all(shown == question for shown in re.findall(r"The agent asks `(.+?)`", text_of(page)))


@pytest.mark.parametrize("page", PAGES)
async def test_the_example_takes_an_answer_with_a_capital_letter(page: str, tmp_path: Path) -> None:
    with imported_example(page, tmp_path) as a2a:
        *_, booking = await book_a_table(page, a2a, str.capitalize)

    assert booking == ("COMPLETED", "Done: a table is booked.")


async def test_adk_takes_a_refusal_and_the_answer_in_its_own_format(tmp_path: Path) -> None:
    with imported_example("adk", tmp_path) as a2a:
        async with AgentTester(a2a, MODULE) as tester:
            refusal = await tester.answer(await tester.send("book a table"), "No")
            question = await tester.send("book a table")
            approval = await tester.answer(question, answer_in_parts("adk", question))

    assert (refusal.text.strip(), approval.text.strip()) == ("Done: None.", "Done: a table is booked.")


async def test_an_answer_of_langgraph_that_is_no_decision_is_refused(tmp_path: Path) -> None:
    with imported_example("langgraph", tmp_path) as a2a:
        async with AgentTester(a2a, MODULE) as tester:
            question = await tester.send("book a table")
            with pytest.raises(InvalidParamsError):
                await tester.answer(question, "perhaps")
            refusal = await tester.answer(question, "false")

    assert question.text == "Book a table?"
    assert refusal.text.strip() == "Done: nothing is booked."


def test_the_line_that_adds_an_agent_by_name_runs() -> None:
    [line] = re.findall(r"^```python\n(.*?)^```", INDEX, re.MULTILINE | re.DOTALL)
    a2a = A2A(Celery("acme", set_as_current=False))

    exec(compile(line, "index.md", "exec"), {"a2a": a2a})

    assert a2a.agents["clerk"].code == "acme.clerk:clerk"


def test_each_extra_has_a_page_and_each_page_is_in_the_table() -> None:
    pages = {page.stem for page in FOLDER.glob("*.md")} - {"index"}

    assert pages == {*FRAMEWORKS, "langchain"}
    assert set(re.findall(r"\]\(([\w-]+)\.md\)", INDEX.partition("\n\n`make` is")[0])) == pages
    for extra in FRAMEWORKS:
        assert f"Install `'a2a-celery[demo,{extra}]'`" in (FOLDER / f"{extra}.md").read_text(encoding="utf-8")


def test_each_version_is_the_oldest_that_its_extra_takes() -> None:
    versions = dict(re.findall(r"`a2a-celery\[(.*?)\]` \|.*\| [a-z-]+ ([0-9.]+) \|$", INDEX, re.MULTILINE))

    assert set(versions) == set(FRAMEWORKS)
    for extra, version in versions.items():
        oldest = EXTRAS[extra][0].partition(">=")[2].partition(",")[0]
        assert oldest in (version, version.rpartition(".")[0])


def test_so_many_tasks_may_wait() -> None:
    assert f"Up to {conversation.MAX_PAUSED} tasks" in " ".join(INDEX.split())
