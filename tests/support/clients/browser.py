"""Headless Chromium and a page object for the operator's page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import which
from typing import Any

from selenium import webdriver
from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from tests.support.waiting import LIMIT, eventually

WIDE, NARROW = (1500, 950), (360, 740)

MODIFIERS = frozenset({Keys.CONTROL, Keys.SHIFT, Keys.ALT, Keys.META})

VERSIONS = """
const rows = [...document.querySelectorAll('.log > .events > li')];
return rows.map(row => row.querySelector('.id').textContent);
"""
"""Script that returns the version, or the range of versions, of each row of the event log."""

SHOWN = """
for (const found of document.querySelectorAll(arguments[0])) if (found.checkVisibility()) return found.innerText;
return '';
"""
"""Script that returns the text of the first visible element of a selector. The driver's own method takes seconds for a
long text."""


def missing_programs() -> str:
    """Return the names of the missing programs of Chromium, or "" if all are installed."""
    return " and ".join(name for name in ("chromium", "chromedriver") if which(name) is None)


@contextmanager
def chromium(folder: Path) -> Iterator[webdriver.Chrome]:
    """Run Chromium with a profile in `folder`. Background connections are disabled. The driver records the console."""
    options = webdriver.ChromeOptions()
    options.binary_location = str(which("chromium"))
    options.add_argument(f"--user-data-dir={folder / 'profile'}")
    for quiet in ("headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "window-size=1500,950"):
        options.add_argument(f"--{quiet}")
    for silent in ("disable-background-networking", "disable-component-update", "disable-sync"):
        options.add_argument(f"--{silent}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    options.add_experimental_option("prefs", {"download.default_directory": str(folder / "downloads")})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(which("chromedriver")))
    try:
        yield driver
    finally:
        driver.quit()


FOCUSED = """
const one = document.activeElement;
return one.labels?.[0]?.innerText ?? one.getAttribute('aria-label') ?? one.innerText;
"""


class Page:
    """Page object for the operator's page of the gateway at `url`."""

    def __init__(self, browser: webdriver.Chrome, url: str) -> None:
        self.browser = browser
        self.url = f"{url}/ui/"

    def open(self, path: str = "") -> Page:
        """Load `path`, even if the browser already shows it."""
        self.browser.get("about:blank")
        self.browser.get(self.url + path)
        return self

    def shape(self, size: tuple[int, int], *, dark: bool = False) -> None:
        """Set the size of the window and the colour scheme."""
        metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": False}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    def all(self, css: str) -> list[WebElement]:
        """Return the visible elements that match `css`."""
        return [element for element in self.browser.find_elements(By.CSS_SELECTOR, css) if element.is_displayed()]

    def element(self, css: str) -> WebElement:
        """Wait for a visible element that matches `css` and return the first."""
        self.until(lambda: bool(self.all(css)), f"{css} is shown")
        return self.all(css)[0]

    def text(self, css: str) -> str:
        """Return the text of the first visible element that matches `css`, or "" if no element matches."""
        return str(self.script(SHOWN, css))

    def texts(self, css: str) -> list[str]:
        """Return the texts of the visible elements that match `css`."""
        return [element.text for element in self.all(css)]

    def content(self, css: str) -> str:
        """Return the text content of the first element that matches `css`."""
        return str(self.script("return document.querySelector(arguments[0])?.textContent ?? ''", css))

    def until(self, true: Callable[[], object], what: str, within: float = LIMIT) -> None:
        """Wait until `true` returns a true value. The failure after a timeout contains the URL and the text of the
        page."""

        def holds() -> bool:
            try:
                return bool(true())
            except (StaleElementReferenceException, NoSuchElementException):
                return False

        try:
            eventually(holds, within=within, what=what)
        except AssertionError as e:
            raise AssertionError(f"{e}\n{self.browser.current_url}\n{self.content('body')[:3000]}") from None

    def shows(self, css: str, text: str, within: float = LIMIT) -> None:
        """Wait until the first visible element that matches `css` contains `text`."""
        self.until(lambda: text in self.text(css), f"{css} shows {text!r}", within)

    def shows_sent(self, *texts: str) -> None:
        """Wait until the task's messages from the client are `texts`. The page shows a message when the response has
        arrived, which may be after later events of the task."""
        self.until(lambda: self.texts("#task .message.user .text") == list(texts), f"the client has sent {texts}")

    def expand(self, css: str) -> None:
        """Open the first visible element ``details`` that matches `css`. A click is repeated if it has missed the
        summary, which moves while the page is loaded."""

        def is_open() -> bool:
            details = self.element(css)
            if not details.get_property("open"):
                details.find_element(By.CSS_SELECTOR, "summary").click()
            return bool(details.get_property("open"))

        self.until(is_open, f"{css} is open")

    def agent(self, name: str) -> None:
        """Select an agent."""
        self.until(lambda: name in [element.text for element in self.all("#agents .list strong")], f"agent {name}")
        [element] = [a for a in self.all("#agents .list a") if a.find_element(By.TAG_NAME, "strong").text == name]
        element.click()
        self.shows("#tasks h2", name)

    def send(self, text: str) -> None:
        """Send a message to the selected agent."""
        self._write("#tasks .composer", text)

    def answer(self, text: str) -> None:
        """Answer the question of the selected task."""
        self._write("#task .question .composer", text)

    def events(self) -> list[str]:
        """Return the texts of the event log's rows, oldest first."""
        rows = self.script("return [...document.querySelectorAll('.events summary')].map(row => row.innerText)")
        return [" ".join(row.split()) for row in rows]

    def count_events(self, text: str) -> int:
        """Return the number of rows of the event log that contain `text`."""
        return sum(text in event for event in self.events())

    def versions(self) -> list[int]:
        """Return the versions of the events in the event log, also of those in rows with several events."""
        ranges = self.script(VERSIONS)
        ends = [[int(text.strip().lstrip("#")) for text in versions.split("–")] for versions in ranges]
        return [version for first, *last in ends for version in range(first, (last or [first])[0] + 1)]

    def task_id(self) -> str:
        """Return the id of the selected task."""
        return self.text("#task .ids code")

    def focused_text(self) -> str:
        """Return the label or the text of the focused element."""
        return str(self.script(FOCUSED))

    def focuses(self, name: str) -> None:
        """Wait until an element whose label starts with `name` has the focus."""
        self.until(lambda: self.focused_text().startswith(name), f"{name!r} has the focus")

    def press(self, *keys: str) -> None:
        """Press keys, or type a text into the focused element. A modifier is held until the last key is released."""
        chain = ActionChains(self.browser)  # without an element, which the page could hide between focus and key
        for key in keys:
            if key in MODIFIERS:
                chain.key_down(key)
            else:
                chain.send_keys(key)
        for key in MODIFIERS.intersection(keys):
            chain.key_up(key)
        chain.perform()

    def tab_to(self, name: str) -> None:
        """Press the tab key until an element whose label starts with `name` has the focus."""
        for _ in range(100):
            if self.focused_text().startswith(name):
                return
            self.press(Keys.TAB)
        raise AssertionError(f"{name!r} is not reached with the tab key")

    def script(self, code: str, *arguments: Any) -> Any:
        """Run `code` in the page and return the result."""
        return self.browser.execute_script(code, *arguments)

    def console(self) -> list[str]:
        """Return the warnings and errors on the console since the last call. Messages about error responses are
        omitted."""
        entries = self.browser.get_log("browser")
        lines = [entry["message"] for entry in entries if entry["level"] in ("SEVERE", "WARNING")]
        return [line for line in lines if "Failed to load resource" not in line]

    def _write(self, form: str, text: str) -> None:
        self.element(f"{form} textarea").send_keys(text)
        self.element(f"{form} textarea").send_keys(Keys.CONTROL, Keys.ENTER)
