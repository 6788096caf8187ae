"""Forms for questions with a schema: use with the keyboard, on a narrow screen, and in both colour schemes."""

from __future__ import annotations

import pytest
from selenium.webdriver.common.keys import Keys

from tests.support.clients.accessibility import violations
from tests.support.clients.browser import WIDE, Page

from .test_page import CUT_OFF, SIDEWAYS

PHONE = (390, 800)


@pytest.fixture
def question_page(page: Page) -> Page:
    """Page with the question of the agent "table"."""
    page.open().agent("table")
    page.send("a table, please")
    page.shows("#task .question-text", "Which table?")
    return page


def labels(page: Page) -> list[str]:
    return page.texts("#task .answer-form .answer-label")


def test_a_form_is_filled_in_with_keys(question_page: Page) -> None:
    optional = ["Meal (optional)", "Smoking (optional)", "Budget (optional)", "Guests (optional)"]
    assert labels(question_page) == ["People", optional[0], "Your name", *optional[1:]]
    assert question_page.text("#task .answer-field .hint") == "How many of you are coming?"
    assert not question_page.all("#task .question .composer"), "the form is the only way to answer"
    assert "$defs" not in question_page.text("#task .question-text")
    question_page.until(
        lambda: "Which table?" in question_page.texts("#tasks .groups .line"), "the list shows the question alone"
    )

    question_page.tab_to("People")
    question_page.press("2", Keys.TAB)
    question_page.press("l", Keys.TAB)  # selects "lunch"
    question_page.press("Ada", Keys.TAB)
    question_page.press("y", Keys.TAB)  # selects "Yes"
    question_page.press("10.5", Keys.TAB)
    question_page.press(Keys.CONTROL, "a")
    question_page.press('["Bob"]', Keys.TAB)
    assert question_page.focused_text() == "Answer"
    question_page.press(Keys.ENTER)

    question_page.shows("#task .question-text", "Shall I book it?")
    assert labels(question_page) == ["Answer"], "the label does not repeat the question"
    question_page.focuses("Yes")
    question_page.press(Keys.SPACE, Keys.ENTER)
    question_page.shows("#task article .text", "2 for Ada, lunch")

    def has_answer() -> bool:
        sent_text = question_page.content("#task .message.user .data")
        return all(text in sent_text for text in ('"people": 2', '"meal": "lunch"', '"smoking": true', "10.5", '"Bob"'))

    question_page.until(has_answer, "the page shows the answer")


def test_a_decision_is_sent_only_after_a_choice(question_page: Page) -> None:
    question_page.tab_to("People")
    question_page.press("2")
    question_page.tab_to("Your name")
    question_page.press("Ada", Keys.ENTER)
    question_page.shows("#task .question-text", "Shall I book it?")
    assert not question_page.all("#task .answer-form input:checked")
    assert violations(question_page.browser) == []

    question_page.script("document.querySelector('#task .answer-form').noValidate = true")
    question_page.element("#task .answer-form button").click()
    question_page.shows("#task .field-error", "Choose Yes or No.")
    question_page.focuses("Yes")
    question_page.script("document.querySelector('#task .answer-form').noValidate = false")
    question_page.element("#task .answer-form button").click()
    assert len(question_page.all("#task .answer-form input:invalid")) == 2, "the browser asks for a choice"

    question_page.press(Keys.SPACE, Keys.ENTER)
    question_page.shows("#task article .text", "2 for Ada, dinner")


def test_a_refused_answer_stays_with_the_reason_at_its_field(question_page: Page) -> None:
    question_page.script("document.querySelector('#task .answer-form').noValidate = true")
    question_page.tab_to("People")
    question_page.press("30")
    question_page.tab_to("Your name")
    question_page.press("Ada", Keys.ENTER)

    question_page.shows("#task .field-error", "30 is greater than the maximum of 20.")
    assert question_page.focused_text().startswith("People")
    question_page.press(Keys.CONTROL, "a")
    question_page.press("3", Keys.ENTER)
    question_page.shows("#task .question-text", "people: our tables are for an even number of people.")
    question_page.focuses("People")
    question_page.press(Keys.CONTROL, "a")
    question_page.press("4", Keys.ENTER)
    question_page.shows("#task .question-text", "Shall I book it?")
    question_page.open()


def test_invalid_json_is_refused_at_its_field(question_page: Page) -> None:
    question_page.tab_to("People")
    question_page.press("2")
    question_page.tab_to("Your name")
    question_page.press("Ada")
    question_page.tab_to("Guests")
    question_page.press("Bob")
    question_page.tab_to("Answer")
    question_page.press(Keys.ENTER)

    question_page.shows("#task .field-error", "Not JSON")
    assert question_page.focused_text().startswith("Guests")


def test_several_questions_are_one_form(page: Page) -> None:
    page.open().agent("survey")
    page.send("go")
    page.shows("#task .question-text", "size: Which size?")

    assert labels(page) == ["size", "colour", "note"]
    page.element("#task .answer-form input").click()
    page.press("3", Keys.TAB)
    page.press("b", Keys.TAB)
    page.press("none", Keys.ENTER)
    page.shows("#task article .text", "4 blue none")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, WIDE], ids=["phone", "wide"])
def test_a_form_fits_the_screen(question_page: Page, size: tuple[int, int], dark: bool) -> None:
    question_page.shape(size, dark=dark)
    question_page.element("#task .answer-form")

    assert question_page.script(SIDEWAYS) == []
    assert question_page.script(CUT_OFF) == []
    assert violations(question_page.browser) == []
