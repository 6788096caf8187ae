"""Accessibility check that runs axe-core in the browser. `make peers` installs axe-core from npm."""

from __future__ import annotations

from pathlib import Path

from selenium.webdriver import Chrome

from tests.support.waiting import LIMIT

AXE = Path(__file__).parents[2] / "peers" / "node_modules" / "axe-core" / "axe.min.js"

RUN = """
const done = arguments[arguments.length - 1];
axe.run(document, {resultTypes: ['violations']}).then(
  found => done(found.violations.map(({id, nodes}) => `${id}: ${nodes.map(node => node.target.join(' ')).join(', ')}`)),
  error => done([String(error)]));
"""


def violations(browser: Chrome) -> list[str]:
    """Return a line for each violated WCAG rule: the rule's id and the CSS selectors of the elements.

    The driver injects axe-core as an expression. The page's Content-Security-Policy does not block expressions.
    """
    browser.set_script_timeout(LIMIT)
    browser.execute_script(AXE.read_text())
    items: list[str] = browser.execute_async_script(RUN)
    return items
