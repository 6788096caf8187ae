"""Environment of processes: the variables that ``dev`` sets for its child processes, and the containers' commands."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from ipaddress import ip_address

import pytest
import yaml
from celery import Celery

from a2a_celery.cli.dev.child import Screen
from a2a_celery.cli.dev.environment import (
    broker_variables,
    shared_variables,
    with_defaults,
    with_embedded,
    with_page,
    with_redis,
)
from a2a_celery.cli.dev.next_steps import STORY_WORDS
from a2a_celery.dispatch.plain_tasks.result_checks import unreadable_results
from a2a_celery.errors import ConfigError
from a2a_celery.settings.loading import load_settings
from a2a_celery.telemetry.logs import JsonFormatter, TextFormatter
from tests.support import ROOT
from workers.story import WORDS

NETWORKS = "A2A_ALLOW_NETWORKS"
SECRET_KEY = "A2A_SECRET_KEY"
STORE_URL = "redis://127.0.0.1:1/0"
KEY = "a-key-for-the-tests-of-32-characters-and-more"


def environment(
    environ: Mapping[str, str], *, lasting: bool = False, loopback: bool = True, **conf: str | list[str]
) -> dict[str, str]:
    app = Celery("tests", set_as_current=False)
    app.conf.update(conf)
    return with_embedded(app, environ, STORE_URL, STORE_URL, lasting=lasting, loopback=loopback)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, ("redis://embedded/1", "redis://embedded/1")),
        ({"CELERY_BROKER_URL": ""}, ("redis://embedded/1", "redis://embedded/1")),
        ({"CELERY_BROKER_URL": "redis://b/1"}, ("redis://b/1", "redis://b/1")),
        ({"CELERY_BROKER_READ_URL": "redis://b/1"}, ("redis://b/1", "redis://embedded/1")),
    ],
)
def test_brokers_for_reading_and_writing_in_the_configuration_are_replaced(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], expected: tuple[str, str]
) -> None:
    app = Celery("tests", broker="redis://production/1", set_as_current=False)
    app.conf.update(broker_read_url="redis://production/2", broker_write_url="redis://production/3")

    for name, value in broker_variables(environ, "redis://embedded/1").items():
        monkeypatch.setenv(name, value)

    assert (app.conf.broker_read_url, app.conf.broker_write_url) == expected


def test_the_embedded_redis_is_the_broker_for_reading_and_writing() -> None:
    env = environment({}, broker_read_url="redis://production/2", broker_write_url="redis://production/3")

    assert (env["CELERY_BROKER_READ_URL"], env["CELERY_BROKER_WRITE_URL"]) == (STORE_URL, STORE_URL)


def test_a_temporary_store_gets_a_new_key_and_allows_webhooks_on_this_machine() -> None:
    first, second = environment({}), environment({})

    settings = load_settings({}, first)
    assert settings.secret_keys
    assert first[SECRET_KEY] != second[SECRET_KEY]
    for address in ("127.0.0.1", "127.1.2.3", "::1"):
        assert any(ip_address(address) in network for network in settings.push_networks)
    assert not any(ip_address("10.0.0.1") in network for network in settings.push_networks)


def test_a_permanent_store_gets_no_key() -> None:
    env = environment({}, lasting=True)

    assert SECRET_KEY not in env
    assert NETWORKS not in env
    assert load_settings({}, env).secret_keys == ()


def test_a_gateway_that_other_machines_reach_delivers_no_webhooks_to_this_machine() -> None:
    env = environment({}, loopback=False)

    assert SECRET_KEY in env
    assert NETWORKS not in env


AUTHENTICATED = {"A2A_AUTH_API_KEYS": f"ann:sha256:{'0' * 64}"}


@pytest.mark.parametrize(
    ("environ", "conf", "loopback", "operators"),
    [
        ({}, {}, True, ("*",)),
        ({}, {}, False, ()),
        ({"A2A_OPERATORS": "ann"}, {}, True, ("ann",)),
        ({}, {"a2a_operators": ["ann"]}, True, ("ann",)),
        (AUTHENTICATED, {}, True, ()),
        ({}, {"a2a_auth_identity_header": "X-Client-Subject"}, True, ()),
    ],
)
def test_the_page_has_every_caller_as_operator_if_only_this_machine_reaches_it_without_authentication(
    environ: dict[str, str], conf: dict[str, str | list[str]], loopback: bool, operators: tuple[str, ...]
) -> None:
    app = Celery("tests", set_as_current=False)
    app.conf.update(conf)

    settings = load_settings(app.conf, with_page(app, {**environ, "A2A_STORE_URL": STORE_URL}, loopback=loopback))

    assert (settings.ui, settings.operators) == (True, operators)


def test_a_page_that_is_off_stays_off() -> None:
    app = Celery("tests", set_as_current=False)

    assert with_page(app, {"A2A_UI": "off"}, loopback=True)["A2A_UI"] == "off"
    app.conf.update(a2a_ui=False)
    assert "A2A_UI" not in with_page(app, {}, loopback=True)


@pytest.mark.parametrize(
    ("environ", "conf", "lease_ttl"),
    [
        ({}, {}, "5"),
        ({"A2A_LEASE_TTL": "9"}, {}, "9"),
        ({}, {"a2a_lease_ttl": 9}, None),
        ({}, {"a2a_lease_ttl": ""}, "5"),
    ],
)
def test_a_default_replaces_no_setting(environ: dict[str, str], conf: dict[str, object], lease_ttl: str | None) -> None:
    app = Celery("tests", set_as_current=False)
    app.conf.update(conf)

    assert with_defaults(app, environ, lease_ttl="5").get("A2A_LEASE_TTL") == lease_ttl


def test_commands_share_the_variables_of_the_fleet_but_no_secret_of_its_authentication() -> None:
    env = {**environment({"A2A_KEY_PREFIX": "shop", **AUTHENTICATED}), "A2A_BEARER": "token", "PATH": "/bin"}

    shared = shared_variables(env)

    assert shared.keys() == {
        *("A2A_STORE_URL", "A2A_KEY_PREFIX", SECRET_KEY, NETWORKS, "A2A_PUBLIC_URL"),
        *("CELERY_BROKER_URL", "CELERY_BROKER_READ_URL", "CELERY_BROKER_WRITE_URL"),
    }


def test_an_external_redis_gets_no_key() -> None:
    env = with_redis(Celery("tests", set_as_current=False), {}, STORE_URL)

    assert SECRET_KEY not in env
    assert NETWORKS not in env


def test_a_broker_behind_sentinels_must_be_set_in_the_app() -> None:
    url = "sentinel://a/0?master_name=m"

    with pytest.raises(ConfigError, match="set broker_url, and broker_transport_options, in the app"):
        with_redis(Celery("tests", set_as_current=False), {}, url)
    assert with_redis(Celery("tests", set_as_current=False, broker="amqp://host"), {}, url)["A2A_STORE_URL"] == url


def test_results_are_redirected_from_sentinels_to_the_embedded_redis() -> None:
    assert environment({}, result_backend="sentinel://a/0")["CELERY_RESULT_BACKEND"] == STORE_URL


@pytest.mark.parametrize("lasting", [True, False])
def test_variables_of_the_environment_are_unchanged(lasting: bool) -> None:
    env = environment({SECRET_KEY: KEY, NETWORKS: "10.0.0.0/8"}, lasting=lasting)

    assert (env[SECRET_KEY], env[NETWORKS]) == (KEY, "10.0.0.0/8")


def test_settings_of_the_app_are_not_overridden() -> None:
    env = environment({}, a2a_secret_key=KEY, a2a_allow_networks=["10.0.0.0/8"])

    assert SECRET_KEY not in env
    assert NETWORKS not in env


@pytest.mark.parametrize(
    "file",
    [
        "compose/compose.yaml",
        "compose/kubernetes/worker.yaml",
        "examples/two_queues/compose.yaml",
        "a2a_celery/cli/new_project/template/compose.yaml.txt",
    ],
)
def test_workers_in_containers_leave_runs_to_idle_workers(file: str) -> None:
    commands = re.findall(r"command: \[celery, worker, (.*)\]", (ROOT / file).read_text(encoding="utf-8"))

    assert commands
    assert all('--prefetch-multiplier, "1"' in command for command in commands)


def test_no_address_on_a_card_of_compose_has_a_port_that_its_variables_move() -> None:
    folder = ROOT / "compose"
    gateway = yaml.safe_load((folder / "compose.yaml").read_text())["services"]["gateway"]["environment"]

    assert gateway["A2A_PUBLIC_URL"] == "${A2A_PUBLIC_URL:-}"
    assert gateway["A2A_GRPC_PUBLIC_ADDRESS"] == "${A2A_GRPC_PUBLIC_ADDRESS:-}"
    assert "proxy_set_header Host $http_host;" in (folder / "nginx.conf").read_text()
    assert load_settings({}, {"A2A_STORE_URL": STORE_URL, "A2A_PUBLIC_URL": ""}).public_url is None


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()], ids=["text", "json"])
def test_the_folded_screen_shows_errors_of_children(
    formatter: logging.Formatter, capsys: pytest.CaptureFixture[str]
) -> None:
    def log_line(level: int, text: str) -> str:
        return formatter.format(logging.LogRecord("celery", level, __file__, 1, text, (), None))

    screen = Screen(is_folded=True)

    for line in (log_line(logging.ERROR, "one"), "its traceback", log_line(logging.INFO, "two"), "more"):
        screen.forward("worker", line)

    lines = capsys.readouterr().out.splitlines()
    assert ["one" in lines[0], lines[1:]] == [True, ["worker  | its traceback"]]


def test_the_story_of_the_tour_is_made_of_whole_sentences() -> None:
    assert " ," not in " ".join(WORDS)
    assert WORDS[-1].endswith(".")
    assert STORY_WORDS % len(WORDS) == 0


@pytest.mark.parametrize("file", ["compose/compose.yaml", "compose/kubernetes/configuration.yaml"])
def test_watchers_in_containers_can_read_results(file: str) -> None:
    [url] = re.findall(r"CELERY_RESULT_BACKEND: (\S+)", (ROOT / file).read_text(encoding="utf-8"))

    assert unreadable_results(Celery(backend=url, set_as_current=False)) is None
