"""Input modes of a card: media types, media ranges and words."""

import logging

import pytest
from a2a.types import AgentCard, AgentSkill, Message, Part
from a2a.utils.errors import ContentTypeNotSupportedError
from celery import Celery

from a2a_celery import A2A
from a2a_celery.errors import ConfigError
from a2a_celery.operations.requests import check_media_types
from tests.support.agents.basic import card as agent_card


def accepts(modes: list[str], media_type: str) -> bool:
    message = Message(parts=[Part(raw=b"content", media_type=media_type)])
    try:
        check_media_types(message, AgentCard(default_input_modes=modes))
    except ContentTypeNotSupportedError:
        return False
    return True


@pytest.mark.parametrize(
    ("modes", "accepted", "refused"),
    [
        (["image/*"], ["image/png", "IMAGE/JPEG", "image/svg+xml; charset=utf-8"], ["application/zip", "text/plain"]),
        (["text/*", "application/json"], ["text/plain", "text/csv", "application/json"], ["image/png", "texts/a"]),
        (["*/*"], ["image/png", "text/plain", "application/x-anything"], []),
        (["*"], ["image/png", "text/plain"], []),
        (["text"], ["text/plain", "text/plain; charset=utf-8", "text"], ["text/csv", "image/png"]),
        (["image/png;q=0.5"], ["image/png"], ["image/jpeg"]),
    ],
)
def test_media_ranges_and_words_match_as_usual(modes: list[str], accepted: list[str], refused: list[str]) -> None:
    assert [name for name in accepted + refused if accepts(modes, name)] == accepted


def test_the_modes_of_skills_may_be_ranges() -> None:
    card = AgentCard(default_input_modes=["text/plain"], skills=[AgentSkill(id="see", input_modes=["image/*"])])

    check_media_types(Message(parts=[Part(raw=b"content", media_type="image/png")]), card)


def gateway_with(modes: list[str]) -> None:
    app = Celery("modes", broker="memory://", config_source={"a2a_store_url": "redis://127.0.0.1:1/0"})
    a2a = A2A(app)
    card = agent_card("see")
    card.default_input_modes[:] = modes
    a2a.add_agent(card, "nowhere:See")
    a2a.asgi()


@pytest.mark.parametrize("mode", ["", "file", "image/", "/png", "text plain/x"])
def test_a_word_that_is_no_media_type_is_refused_at_start(mode: str) -> None:
    with pytest.raises(ConfigError, match="of its card is not a media type") as refused:
        gateway_with(["text/plain", mode])

    assert str(refused.value).startswith(f"agent 'see': input mode {mode!r} ")


def test_the_word_text_is_reported_at_start(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        gateway_with(["text"])

    assert "agent 'see': the input mode 'text' of its card means text/plain: write text/plain" in caplog.text


def test_media_types_and_ranges_are_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        gateway_with(["text/plain", "image/*", "*/*", "application/json; charset=utf-8"])

    assert "mode" not in caplog.text
