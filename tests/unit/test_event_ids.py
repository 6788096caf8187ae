"""Event ids: text form and comparison."""

from __future__ import annotations

import pytest

from a2a_celery.lifecycle import EventId


@pytest.mark.parametrize("event_id", [EventId(1), EventId(0), EventId(10**15 - 1, 10**16 - 1), EventId(7, 1)])
def test_the_text_of_an_id_is_read_back(event_id: EventId) -> None:
    assert EventId.parse(str(event_id)) == event_id


@pytest.mark.parametrize(
    "text", ["", "-", "1-", "-1", "1-2-3", "1.5", "x", "+1", " 1", "1\n", "\u0661", "9" * 16, "1-" + "9" * 17]
)
def test_an_invalid_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="an event id must have the form"):
        EventId.parse(text)


@pytest.mark.parametrize(
    ("other", "differs"),
    [(EventId(5, 70), False), (EventId(5), False), (EventId(5, 71), True), (EventId(4, 70), True), (EventId(6), True)],
)
def test_one_version_at_two_times_is_two_events(other: EventId, differs: bool) -> None:
    assert EventId(5, 70).differs_from(other) is other.differs_from(EventId(5, 70)) is differs
