"""Measure the first view of the operator's page with 10,000 tasks: python -m tests.tools.first_paint.

For each view, the tool prints the median and the range of two times after the navigation: the first contentful paint,
and the first frame with data of the tasks. The browser has an empty cache ("cold") or the files of the page ("warm").
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from selenium import webdriver

from tests.browser.test_first_paint import TASKS, VIEWS, seed
from tests.support.clients.browser import Page, chromium
from tests.support.processes.fleet import running_fleet

ROUNDS = 9

OBSERVER = """
(([css, text]) => {
  const shown = () => [...document.querySelectorAll(css)].some((one) => one.textContent.includes(text));
  const observer = new MutationObserver(() => {
    if (!shown()) return;
    observer.disconnect();
    requestAnimationFrame(() => setTimeout(() => (window.shownAt = performance.now())));
  });
  observer.observe(document, { childList: true, subtree: true, characterData: true });
})(%s);
"""
"""Script that sets `shownAt` to the end of the first frame in which an element that matches `css` contains `text`."""

TIMES = """
const [paint] = performance.getEntriesByName('first-contentful-paint');
return window.shownAt && paint ? [paint.startTime, window.shownAt] : null;
"""


def times(page: Page, address: str, css: str, text: str, *, cold: bool) -> tuple[float, float]:
    """Open a view. Return the times in milliseconds of the first contentful paint and of the first frame with data."""
    browser = page.browser
    script = {"source": OBSERVER % json.dumps([css, text])}
    identifier = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", script)["identifier"]
    browser.execute_cdp_cmd("Network.setCacheDisabled", {"cacheDisabled": cold})
    page.open(address)
    page.until(lambda: page.script(TIMES), "the view is painted")
    browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", {"identifier": identifier})
    paint, final_paint = page.script(TIMES)
    return float(paint), float(final_paint)


def summary(values: Sequence[float]) -> str:
    """Return the median and the range of times in milliseconds."""
    return f"{median(values):4.0f} ms ({min(values):.0f} to {max(values):.0f})"


def report(browser: webdriver.Chrome, url: str, rounds: int) -> None:
    """Print a line for each view and cache state, with the medians of `rounds` measurements."""
    page = Page(browser, url)
    browser.execute_cdp_cmd("Network.enable", {})
    print(f"{TASKS:,} tasks, medians of {rounds}, load {os.getloadavg()[0]:.1f} before")
    for name, (address, css, text) in VIEWS.items():
        for cold in (True, False):
            measurements = [times(page, address, css, text, cold=cold) for _ in range(rounds)]
            paints, data = zip(*measurements, strict=True)
            cache = "cold" if cold else "warm"
            print(f"{name:12} {cache}  first paint {summary(paints)}  data {summary(data)}", flush=True)
    print(f"load {os.getloadavg()[0]:.1f} after")


def main() -> None:
    """Start a gateway with many tasks and measure each view."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.first_paint", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="measurements of each view: %(default)s")
    rounds = parser.parse_args().rounds
    with (
        tempfile.TemporaryDirectory() as folder,
        running_fleet(Path(folder), app="tests.support.agents.page_agents", A2A_UI="on", A2A_OPERATORS="*") as fleet,
        chromium(Path(folder)) as browser,
    ):
        gateway = fleet.gateway()
        asyncio.run(seed(fleet.redis.store_url))
        report(browser, gateway.url, rounds)


if __name__ == "__main__":
    main()
