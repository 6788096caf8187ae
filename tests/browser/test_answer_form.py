"""Forms for questions with a schema: use with the keyboard, on a narrow screen, and in both colour schemes."""

from __future__ import annotations

import pytest
from selenium.webdriver.common.keys import Keys

from tests.support.accessibility import violations
from tests.support.browser import WIDE, Page

from .test_page import CUT_OFF, SIDEWAYS

PHONE = (390, 800)


@pytest.fixture
def asked(page: Page) -> Page:
    """Page with the question of the agent "table"."""
    page.open().agent("table")
    page.send("a table, please")
    page.shows("#task .question-text", "Which table?")
    return page


def labels(page: Page) -> list[str]:
    return page.texts("#task .answer-form label")


def test_a_form_is_filled_in_with_keys(asked: Page) -> None:
    optional = ["Meal (optional)", "Smoking (optional)", "Budget (optional)", "Guests (optional)"]
    assert labels(asked) == ["People", optional[0], "Your name", *optional[1:]]
    assert asked.text("#task .answer-field .hint") == "How many of you are coming?"
    assert not asked.all("#task .question .composer"), "the form is the only way to answer"
    assert "$defs" not in asked.text("#task .question-text")
    asked.until(lambda: "Which table?" in asked.texts("#tasks .groups .line"), "the list shows the question alone")

    asked.tab_to("People")
    asked.press("2", Keys.TAB)
    asked.press("l", Keys.TAB)  # selects "lunch"
    asked.press("Ada", Keys.TAB)
    asked.press(Keys.SPACE, Keys.TAB)
    asked.press("10.5", Keys.TAB)
    asked.press(Keys.CONTROL, "a")
    asked.press('["Bob"]', Keys.TAB)
    assert asked.focused() == "Answer"
    asked.press(Keys.ENTER)

    asked.shows("#task .question-text", "Shall I book it?")
    assert labels(asked) == ["Answer"]
    asked.tab_to("Answer")
    asked.press(Keys.SPACE, Keys.ENTER)
    asked.shows("#task article .text", "2 for Ada, lunch")
    sent = asked.content("#task .message.user .data")
    assert all(text in sent for text in ('"people": 2', '"meal": "lunch"', '"smoking": true', "10.5", '"Bob"'))


def test_a_refused_answer_stays_with_the_reason_at_its_field(asked: Page) -> None:
    asked.script("document.querySelector('#task .answer-form').noValidate = true")
    asked.tab_to("People")
    asked.press("30")
    asked.tab_to("Your name")
    asked.press("Ada", Keys.ENTER)

    asked.shows("#task .field-error", "30 is greater than the maximum of 20.")
    assert asked.focused().startswith("People")
    asked.press(Keys.CONTROL, "a")
    asked.press("3", Keys.ENTER)
    asked.shows("#task .question-text", "people: our tables are for an even number of people.")
    asked.tab_to("People")
    asked.press(Keys.CONTROL, "a")
    asked.press("4", Keys.ENTER)
    asked.shows("#task .question-text", "Shall I book it?")
    asked.open()


def test_invalid_json_is_refused_at_its_field(asked: Page) -> None:
    asked.tab_to("People")
    asked.press("2")
    asked.tab_to("Your name")
    asked.press("Ada")
    asked.tab_to("Guests")
    asked.press("Bob")
    asked.tab_to("Answer")
    asked.press(Keys.ENTER)

    asked.shows("#task .field-error", "Not JSON")
    assert asked.focused().startswith("Guests")


def test_several_questions_are_one_form(page: Page) -> None:
    page.open().agent("survey")
    page.send("go")
    page.shows("#task .question-text", "size: Which size?")

    assert labels(page) == ["size", "colour", "note"]
    page.one("#task .answer-form input").click()
    page.press("3", Keys.TAB)
    page.press("b", Keys.TAB)
    page.press("none", Keys.ENTER)
    page.shows("#task article .text", "4 blue none")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, WIDE], ids=["phone", "wide"])
def test_a_form_fits_the_screen(asked: Page, size: tuple[int, int], dark: bool) -> None:
    asked.shape(size, dark=dark)
    asked.one("#task .answer-form")

    assert asked.script(SIDEWAYS) == []
    assert asked.script(CUT_OFF) == []
    assert violations(asked.browser) == []
