"""Examples of docs/frameworks: extraction of an example, and a conversation with its agent."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from a2a.types import Message, Part
from google.protobuf.json_format import MessageToDict, ParseDict

from a2a_celery import A2A
from a2a_celery.client import InputRequest, Result
from a2a_celery.testing import AgentTester
from tests.support import ROOT

FOLDER = ROOT / "docs" / "frameworks"
MODULE = "clerk"


def text_of(page: str) -> str:
    """Return the Markdown of a page."""
    return (FOLDER / f"{page}.md").read_text(encoding="utf-8")


def example(page: str) -> str:
    """Return the code of clerk.py on a page."""
    [code] = re.findall(rf"^<!-- file: {MODULE}\.py -->\n```python\n(.*?)^```", text_of(page), re.MULTILINE | re.DOTALL)
    return code


@contextmanager
def imported_example(page: str, folder: Path) -> Iterator[A2A]:
    """Import the example of a page as the module `clerk`, and yield its A2A object."""
    (folder / f"{MODULE}.py").write_text(example(page))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.delitem(sys.modules, MODULE, raising=False)
        try:
            yield importlib.import_module(MODULE).a2a
        finally:
            sys.modules.pop(MODULE, None)


def answer_in_parts(page: str, question: Result) -> Message:
    """Return the parts of an answer that a page shows as JSON, with the id of the call in `question`."""
    [call] = [MessageToDict(part.data) for part in question.parts if part.HasField("data")]
    [shown] = re.findall(r"^```json\n(.*?)^```", text_of(page), re.MULTILINE | re.DOTALL)
    part = json.loads(shown)
    part["data"] |= {"id": call["id"], "name": call["name"]}
    return Message(parts=[ParseDict(part, Part())])


def entered(text: str, question: Result) -> str:
    """Return the answer that ``a2a-celery call`` sends if a reader enters `text` at its prompt."""
    request = InputRequest.of(question)
    is_decision = request is not None and [(f.name, f.kind) for f in request.fields] == [("", "boolean")]
    return json.dumps(request.fields[0].parse(text)) if request and is_decision else text


async def book_a_table(page: str, a2a: A2A, spell: Callable[[str], str] = str) -> list[tuple[str, str]]:
    """Talk to the example's agent, give the answer that the page tells the reader to enter in the spelling of `spell`,
    and return the state and the text of each result."""
    answer = spell(re.findall(r"Enter `(.+?)`", text_of(page))[0])
    async with AgentTester(a2a, MODULE) as tester:
        greeting = await tester.send("hello")
        question = await tester.send("book a table")
        booking = await tester.answer(question, entered(answer, question))
    return [(result.state_name, result.text.strip()) for result in (greeting, question, booking)]
