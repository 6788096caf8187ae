"""Take the screenshots page.png and overview.png in docs/images: python -m tests.tools.page_picture."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.support import ROOT
from tests.support.clients.browser import Page, chromium
from tests.support.processes.fleet import running_fleet

IMAGES = ROOT / "docs" / "images"
CALLS = 40
SIZE = (1280, 800)
LINE = 60
"""Minimum length of the SVG path of a chart with several points."""

SEND = """
const message = { messageId: crypto.randomUUID(), role: 'ROLE_USER', parts: [{ text: arguments[1] }] };
return fetch(arguments[0], {
  method: 'POST',
  headers: { 'A2A-Version': '1.0', 'Content-Type': 'application/json' },
  body: JSON.stringify({ message }),
}).then(answer => answer.status);
"""
"""Script that sends a message and returns the status of the response."""


def main() -> None:
    """Run the sample agents, start tasks, and save screenshots of two views."""
    with (
        tempfile.TemporaryDirectory() as folder,
        running_fleet(Path(folder), app="workers.app", A2A_UI="on", A2A_OPERATORS="*") as fleet,
        chromium(Path(folder)) as browser,
    ):
        fleet.worker(pool="threads", concurrency=8)
        fleet.watcher()
        page = Page(browser, fleet.gateway().url)
        page.shape(SIZE)
        page.open().agent("slow")
        page.send("60")
        page.shows("#task .badge", "Working")
        page.agent("booking")
        page.send("A table, please")
        page.shows("#task .question-text", "For how many people?")
        page.answer("4")
        page.shows("#task .question-text", "For which day?")
        page.shows("#tasks .groups h4", "Needs an answer")
        browser.save_screenshot(str(IMAGES / "page.png"))
        page.open("#view=overview")
        page.shows("#view .tiles", "Running")
        for number in range(CALLS):
            page.script(SEND, "../agents/echo/message:send", str(number))
        page.until(lambda: len(str(page.element("#view .line").get_attribute("d"))) > LINE, "a chart")
        browser.save_screenshot(str(IMAGES / "overview.png"))


if __name__ == "__main__":
    main()
