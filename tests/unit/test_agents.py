"""Agents: options, cards, and names, which become parts of URLs and keys."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest
from a2a.types import AgentCapabilities, AgentCard, AgentSkill
from celery import Celery

from a2a_celery import A2A, ConfigError, Turn
from a2a_celery.agent_cards import card_for_function
from a2a_celery.agents import MOST_ATTEMPTS, Agent, name_from_card
from a2a_celery.execution.agents.adapters import make_adapter
from a2a_celery.features import FEATURE_OPTIONS
from a2a_celery.features.idempotency import Idempotency
from a2a_celery.features.sessions import Sessions


def card(name: str = "Planner", **capabilities: Any) -> AgentCard:
    return AgentCard(name=name, description="d", version="1", capabilities=AgentCapabilities(**capabilities))


def agent(name: str = "planner", of: AgentCard | None = None, kind: Any = "function", **more: Any) -> Agent:
    of_features = {option: more.pop(option) for option in FEATURE_OPTIONS & set(more)}
    return Agent(name, of or card(), kind, print, feature_options=of_features, **more)


@pytest.mark.parametrize("name", ["a", "0", "route-planner_2.1", "a" * 63])
def test_a_plain_name_is_accepted(name: str) -> None:
    assert agent(name).name == name


@pytest.mark.parametrize("name", ["", "A", "-a", ".", "a b", "a/b", "a:b", "ü", "a{", "a" * 64, "a\n"])
def test_a_name_that_is_no_part_of_a_url_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="agent name"):
        agent(name)


@pytest.mark.parametrize(
    ("card_name", "name"),
    [
        ("Route Planner 2", "route-planner-2"),
        ("  x  ", "x"),
        ("Ärzte", "rzte"),
        ("a" * 80, "a" * 63),
        ("A/B: c", "a-b-c"),
    ],
)
def test_a_name_is_made_from_the_card(card_name: str, name: str) -> None:
    assert name_from_card(card(card_name)) == name
    assert agent(name_from_card(card(card_name))).name == name


@pytest.mark.parametrize("card_name", ["", "???", "日本"])
def test_a_card_without_a_usable_name_needs_the_option_name(card_name: str) -> None:
    with pytest.raises(ConfigError, match="pass name="):
        name_from_card(card(card_name))


async def answer(turn: Turn) -> AsyncGenerator[str, None]:
    yield turn.text


def test_an_agent_of_a_framework_is_a_function_with_a_session() -> None:
    a2a = A2A(Celery("test", set_as_current=False))

    agent = a2a.add_agent(card(), answer, max_attempts=2)

    assert (agent.kind, agent.code, agent.features, agent.max_attempts) == ("function", answer, (Sessions(),), 2)
    assert agent.serialize_context


def test_an_agent_of_a_framework_needs_its_session() -> None:
    a2a = A2A(Celery("test", set_as_current=False))

    with pytest.raises(ConfigError, match=r"session = False: .* leave the option out"):
        a2a.add_agent(card(), answer, session=False)


@pytest.mark.parametrize("version", ["1", "2.0.0-rc_1+build", "0fe3" * 16])
def test_a_version_is_accepted(version: str) -> None:
    assert agent(version=version).version == version


@pytest.mark.parametrize("version", ["", " ", "-1", "1 2", "1/2", "ü", "1\n", "1" * 65, 2])
def test_a_version_that_is_no_part_of_a_queue_name_is_refused(version: Any) -> None:
    with pytest.raises(ConfigError, match=r"version = .*letters, digits"):
        agent(version=version)


def test_a_version_needs_a_queue() -> None:
    with pytest.raises(ConfigError, match="needs a queue"):
        agent(version="1", options={"exchange": "agents"})
    assert agent(version="1", options={"exchange": "agents", "queue": "gpu"}).version == "1"


@pytest.mark.parametrize(("version", "card_version"), [(None, "1.0.0"), ("2", "2")])
def test_the_card_of_a_function_shows_its_version(version: str | None, card_version: str) -> None:
    a2a = A2A(Celery("test", set_as_current=False))
    a2a.agent("echo", version=version)("acme:echo")

    assert a2a.agents["echo"].version == version
    assert a2a.agents["echo"].card.version == card_version


def test_an_extended_card_that_the_public_one_does_not_announce_is_refused() -> None:
    with pytest.raises(ConfigError, match="extended_agent_card"):
        agent(extended_card=card())

    assert agent(of=card(extended_agent_card=True), extended_card=card()).extended_card == card()


def test_an_option_that_would_not_reach_celery_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"unknown option 'colour'; known: .*queue"):
        agent(options={"queue": "gpu", "colour": "red"})


def test_a_name_can_be_used_once() -> None:
    a2a = A2A(Celery("test"))
    a2a.add_agent(card(), lambda: None)  # type: ignore[arg-type,return-value]

    with pytest.raises(ConfigError, match="there is an agent 'planner' already"):
        a2a.add_agent(card("planner"), lambda: None)  # type: ignore[arg-type,return-value]


def test_the_card_of_a_function_has_its_docstring() -> None:
    def function() -> None:
        """Plans routes.

        Not shown.
        """

    function_card = card_for_function(
        "plan", function, description=None, version="2", skills=(), input_modes=("a/b",), output_modes=("c/d",)
    )

    assert (function_card.name, function_card.description, function_card.version) == ("plan", "Plans routes.", "2")
    assert [skill.description for skill in function_card.skills] == ["Plans routes."]
    assert (list(function_card.default_input_modes), list(function_card.default_output_modes)) == (["a/b"], ["c/d"])
    assert function_card.capabilities.streaming


def test_options_of_a_function_precede_its_docstring() -> None:
    skill = AgentSkill(id="s", name="s", description="s", tags=["t"])

    function_card = card_for_function(
        "plan", print, description="Mine.", version="1", skills=[skill], input_modes=(), output_modes=()
    )

    assert function_card.description == "Mine."
    assert list(function_card.skills) == [skill]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("idempotency_window", 0),
        ("idempotency_window", -1),
        ("idempotency_window", True),
        ("idempotency_window", "60"),
        ("idempotency_window", float("nan")),
        ("idempotency_window", float("inf")),
        ("route", "queue"),
        ("route", {"queue": "q"}),
        ("scheduling", 1),
        ("scheduling", None),
        ("signals", "approval"),
        ("signals", ("two words",)),
        ("signals", (7,)),
        ("signals", None),
    ],
)
def test_an_option_that_cannot_be_honoured_is_refused_by_name(option: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=option):
        A2A(Celery("test")).agent("a", **{option: value})(print)


def test_only_functions_receive_signals() -> None:
    assert agent(signals=("more-data",)).signals == ("more-data",)
    with pytest.raises(ConfigError, match="only function agents can wait for signals"):
        agent(kind="executor", signals=("more-data",))


def test_a_route_that_is_a_coroutine_function_is_refused() -> None:
    async def route(*_: Any) -> dict[str, Any]:
        return {}

    with pytest.raises(ConfigError, match="route"):
        A2A(Celery("test")).agent("a", route=route)(print)


def test_an_agent_s_own_options_do_not_go_to_celery() -> None:
    def route(*_: Any) -> dict[str, Any]:
        return {}

    a2a = A2A(Celery("test"))
    a2a.agent("a", queue="q", idempotency_window=60, route=route, scheduling=True)(print)
    agent = a2a.agents["a"]

    assert dict(agent.options) == {"queue": "q"}
    assert (agent.features, agent.route, agent.scheduling) == ((Idempotency(60),), route, True)


def test_runs_of_a_function_with_a_session_are_serialized_by_default() -> None:
    assert not agent().serialize_context
    assert agent(session=True).serialize_context
    assert not agent(session=True, one_run_per_context=False).serialize_context
    assert agent(one_run_per_context=True).serialize_context
    assert agent(kind="task", session=True).serialize_context
    assert not agent(kind="executor", session=True).serialize_context
    assert agent(kind="executor", session=True, one_run_per_context=True).serialize_context


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"session": 1}, "session = 1: True or False"),
        ({"session": None}, "session = None"),
        ({"one_run_per_context": "yes"}, "one_run_per_context = 'yes'"),
        ({"session": True, "scheduling": True}, "set one_run_per_context = False"),
        ({"one_run_per_context": True, "scheduling": True}, "set one_run_per_context = False"),
    ],
)
def test_an_option_of_sessions_that_can_not_be_honoured_is_refused(options: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        agent(**options)

    assert agent(session=True, scheduling=True, one_run_per_context=False).scheduling


def test_a_function_may_be_named_and_is_not_imported_here() -> None:
    a2a = A2A(Celery("named", set_as_current=False))

    code = a2a.agent("planner", description="Plans.")("nowhere.plans:planner")

    assert code == a2a.agents["planner"].code == "nowhere.plans:planner"
    assert a2a.agents["planner"].card.description == "Plans."
    assert (
        card_for_function(
            "p", "nowhere:p", description=None, version="1", skills=[], input_modes=[], output_modes=[]
        ).description
        == "p"
    )


async def test_a_name_of_no_function_is_refused_where_it_is_imported() -> None:
    with pytest.raises(ConfigError, match="'math:pi' is not a function"):
        await make_adapter(Agent("planner", card(), "function", "math:pi"), None)


@pytest.mark.parametrize(
    ("options", "agent_options", "attempts"),
    [
        ({}, {}, 1),
        ({"acks_late": True}, {}, 1),
        ({"reject_on_worker_lost": True}, {}, 1),
        ({"acks_late": True, "reject_on_worker_lost": True}, {}, 4),
        ({"acks_late": True, "reject_on_worker_lost": True, "max_retries": 0}, {}, 1),
        ({"acks_late": True, "reject_on_worker_lost": True, "max_retries": None}, {}, MOST_ATTEMPTS),
        ({"acks_late": True, "reject_on_worker_lost": True}, {"max_attempts": 2}, 2),
    ],
)
def test_the_attempts_of_an_exposed_task_follow_its_celery_options(
    options: dict[str, Any], agent_options: dict[str, Any], attempts: int
) -> None:
    app = Celery("test", set_as_current=False)

    @app.task(shared=False, **options)
    def resize(url: str) -> None: ...

    assert A2A(app).expose(resize, **agent_options).max_attempts == attempts


@pytest.mark.parametrize("kind", ["function", "executor"])
@pytest.mark.parametrize("on_message", ["queue", "steer", "interrupt", "reject"])
def test_functions_and_executors_honour_each_on_message(kind: str, on_message: Any) -> None:
    assert agent(kind=kind, on_message=on_message).on_message == on_message


def test_a_celery_task_queues_or_rejects_messages() -> None:
    for on_message in ("queue", "reject"):
        agent(kind="task", on_message=on_message)
    for on_message in ("steer", "interrupt"):
        with pytest.raises(ConfigError, match=f"'{on_message}': a Celery task receives its arguments once"):
            agent(kind="task", on_message=on_message)


def test_an_unknown_on_message_is_refused() -> None:
    with pytest.raises(ConfigError, match="on_message = 'drop': one of queue, steer, interrupt, reject"):
        agent(on_message="drop")


def test_a_message_for_later_cannot_reach_a_working_agent() -> None:
    for on_message in ("steer", "interrupt"):
        with pytest.raises(ConfigError, match="a message for later would arrive at once"):
            agent(on_message=on_message, scheduling=True)


def test_an_agent_without_a_name_is_refused() -> None:
    a2a = A2A(Celery("test", set_as_current=False))

    with pytest.raises(ConfigError, match=r'write @a2a\.agent\("NAME"\)'):

        @a2a.agent  # type: ignore[arg-type]
        def echo(turn: Turn) -> str:
            return turn.text


@pytest.mark.parametrize("function", [lambda: "", lambda turn, other: "", 3])
def test_a_function_that_does_not_accept_the_turn_is_refused(function: Any) -> None:
    a2a = A2A(Celery("test", set_as_current=False))

    with pytest.raises(ConfigError, match=r"agent 'echo': .* must be a function with one parameter, the turn"):
        a2a.agent("echo")(function)


def test_a_function_that_is_not_a_task_cannot_be_exposed() -> None:
    a2a = A2A(Celery("test", set_as_current=False))

    with pytest.raises(ConfigError, match=r"is not a Celery task: decorate the function with @app\.task"):
        a2a.expose(lambda text: text)
