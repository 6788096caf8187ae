"""Import check of a worker, which does not start if an agent that is registered by name cannot be imported."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import pytest
from celery import Celery

from a2a_celery import A2A
from a2a_celery.cli.doctor.checks import diagnosis
from a2a_celery.cli.doctor.survey import survey
from a2a_celery.execution.agents.adapters import NO_REPLY, import_errors, load
from a2a_celery.execution.celery.start_check import SPAWN_TIMEOUT, prepare_spawning, worker_starts
from a2a_celery.execution.celery.worker_signals import import_path
from tests.support.agents.basic import card
from tests.support.waiting import LIMIT


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write modules to import, some of which cannot be imported."""
    (tmp_path / "acme_fine.py").write_text("print('imported')\nclass Agent: ...\n")
    (tmp_path / "acme_broken.py").write_text("raise RuntimeError('no licence\\nsecond line')\n")
    (tmp_path / "acme_exits.py").write_text("import sys\nsys.exit(7)\n")
    (tmp_path / "acme_dies.py").write_text("import os\nos._exit(7)\n")
    monkeypatch.syspath_prepend(str(tmp_path))


def make_app(**agents: str) -> A2A:
    app = Celery("acme", broker="memory://localhost", set_as_current=False)
    app.conf.a2a_store_url = "redis://127.0.0.1:1/0"
    a2a = A2A(app)
    for name, code in agents.items():
        a2a.add_agent(card(name), code, **({"queue": "gpu"} if name == "gpu" else {}))
    return a2a


def start_worker(a2a: A2A) -> None:
    a2a.worker()  # a worker's signals are connected at its start
    worker_starts(SimpleNamespace(app=a2a.celery))


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("acme_missing:Agent", "ModuleNotFoundError: No module named 'acme_missing'"),
        ("acme_fine:Missing", "AttributeError: module 'acme_fine' has no attribute 'Missing'"),
        ("acme_broken:Agent", "RuntimeError: no licence"),
        ("acme_exits:Agent", "SystemExit: 7"),
    ],
)
def test_an_agent_that_cannot_be_imported_stops_the_worker_with_an_error(modules: None, code: str, reason: str) -> None:
    with pytest.raises(SystemExit) as exc_info:
        start_worker(make_app(one="acme_fine:Agent", two=code))

    assert exc_info.value.code == f"Error: agent 'two': {code!r} cannot be loaded: {reason}"


def test_an_import_that_kills_its_process_is_reported(modules: None) -> None:
    assert import_errors(make_app(one="acme_dies:Agent").agents.values()) == {"one": NO_REPLY}


def test_the_checking_process_imports_no_agent(modules: None) -> None:
    """Side effects of an import, such as a connection, would not survive the fork of a pool process."""
    start_worker(make_app(one="acme_fine:Agent"))

    assert "acme_fine" not in sys.modules


def test_the_output_of_an_import_is_not_that_of_a_command(modules: None, capfd: pytest.CaptureFixture[str]) -> None:
    """Scripts read the output of ``doctor --json``."""
    assert import_errors(make_app(one="acme_fine:Agent").agents.values()) == {}

    output = capfd.readouterr()
    assert output.out == ""
    assert "imported\n" in output.err


def test_the_doctor_reports_a_failed_import(modules: None) -> None:
    app = make_app(one="acme_missing:Agent")
    app.celery.conf.broker_url = "redis://127.0.0.1:1/0"

    findings = diagnosis(survey(app, "http://127.0.0.1:1", timeout=0.1))

    [finding] = [finding for finding in findings if finding.check == "imports"]
    assert (finding.level, finding.about) == ("wrong", "agent one")
    assert "No module named 'acme_missing'" in finding.text


def test_an_agent_in_the_current_folder_is_imported_as_celery_imports_the_app(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python's path contains the folder of the ``celery`` script, but not the current folder."""
    (tmp_path / "acme_beside.py").write_text("import acme_helper\nclass Agent: ...\n")
    (tmp_path / "acme_helper.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])

    start_worker(make_app(one="acme_beside:Agent"))

    assert load("acme_beside:Agent").__name__ == "Agent"
    assert sys.path.count(str(tmp_path)) == 1


def test_a_hanging_import_delays_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    has_begun, may_continue = Event(), Event()
    monkeypatch.setattr(sys, "acme_events", (has_begun, may_continue), raising=False)
    (tmp_path / "acme_hangs.py").write_text(
        "import sys\nbegun, go_on = sys.acme_events\nbegun.set()\ngo_on.wait()\nclass Agent: ...\n"
    )
    (tmp_path / "acme_quick.py").write_text("class Agent: ...\n")
    monkeypatch.chdir(tmp_path)
    with ThreadPoolExecutor(2) as threads:
        try:
            hanging = threads.submit(load, "acme_hangs:Agent")
            assert has_begun.wait(LIMIT)
            assert threads.submit(load, "acme_quick:Agent").result(LIMIT).__name__ == "Agent"
        finally:
            may_continue.set()
        assert hanging.result(LIMIT).__name__ == "Agent"


def test_a_worker_needs_only_the_agents_of_its_queues() -> None:
    a2a = make_app(gpu="acme_missing:Agent")
    start_worker(a2a)

    a2a.celery.amqp.queues.select(["gpu"])
    with pytest.raises(SystemExit, match="agent 'gpu'"):
        start_worker(a2a)


def spawning_worker(app: Celery, pool: str = "prefork", start_method: str = "spawn") -> SimpleNamespace:
    return SimpleNamespace(app=app, pool_cls=pool, pool_start_method=start_method)


def test_a_worker_whose_spawned_children_cannot_import_the_app_does_not_start() -> None:
    a2a = A2A(Celery("nowhere", set_as_current=False))
    a2a.worker()

    with pytest.raises(SystemExit, match=r"worker_pool_start_method.*variable of a module"):
        prepare_spawning(spawning_worker(a2a.celery))
    for pool, start_method in (("prefork", "fork"), ("threads", "spawn"), ("a2a_celery.pool:AsyncioPool", "spawn")):
        prepare_spawning(spawning_worker(a2a.celery, pool, start_method))


def test_spawned_children_have_time_for_their_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    a2a = A2A(Celery("somewhere", set_as_current=False))
    a2a.worker()
    monkeypatch.setitem(globals(), "app", a2a.celery)

    prepare_spawning(spawning_worker(a2a.celery))

    assert a2a.celery.conf.worker_proc_alive_timeout == SPAWN_TIMEOUT
    assert import_path(a2a.celery) == (__name__, "app")
