"""Take docs/images/page.png, the screenshot of the operator's page: python -m tests.tools.page_picture."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.support import ROOT
from tests.support.browser import Page, chromium
from tests.support.fleet import running_fleet

PICTURE = ROOT / "docs" / "images" / "page.png"
SIZE = (1280, 800)


def main() -> None:
    """Run the sample agents, ask one of them a question, and save the page."""
    with (
        tempfile.TemporaryDirectory() as folder,
        running_fleet(Path(folder), app="workers.app", A2A_UI="on") as fleet,
        chromium(Path(folder)) as browser,
    ):
        fleet.worker(pool="threads", concurrency=8)
        page = Page(browser, fleet.gateway().url)
        page.shape(SIZE)
        page.open().agent("slow")
        page.send("60")
        page.shows("#task .badge", "Working")
        page.agent("booking")
        page.send("A table, please")
        page.shows("#task .asked", "For how many people?")
        page.answer("4")
        page.shows("#task .asked", "For which day?")
        page.shows("#tasks .groups h4", "Needs an answer")
        browser.save_screenshot(str(PICTURE))


if __name__ == "__main__":
    main()
