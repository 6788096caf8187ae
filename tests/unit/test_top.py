"""View of ``a2a top``, which fits the terminal, and the terminal's state, which the command restores."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.cli.operator import top
from a2a_celery.cli.operator.stats import FleetReading
from a2a_celery.cli.operator.top import View, Views, WorkerLoad, WorkerLoads, keyboard, show_views
from a2a_celery.cli.output import json_line
from a2a_celery.errors import StoreUnavailable
from a2a_celery.features.webhooks.deliveries import DeliveryMetrics
from a2a_celery.lifecycle.states import COMPLETED, FAILED
from a2a_celery.store import SyncStore
from a2a_celery.store.admin.metrics import FleetMetrics
from a2a_celery.store.admin.usage import Memory
from tests.support.clocks import START, ManualClock
from tests.support.processes.terminal import CTRL_C, Terminal, terminal

RUNS = {"queued": 12, "blocked": 1, "running": 3, "delegated": 0, "suspended": 2}


def reading(
    seconds: float = 0.0, *, ended_count: int = 0, failed_count: int = 0, given_up: int = 7, agents: int = 1
) -> FleetReading:
    """Return a reading `seconds` after the first one, with totals of the agent "echo"."""
    counts = {("ended", "echo", str(int(COMPLETED))): ended_count, ("ended", "echo", str(int(FAILED))): failed_count}
    counts |= {("ended", f"agent-{number}", str(int(COMPLETED))): 1 for number in range(1, agents)}
    metrics = FleetMetrics(round((START + seconds) * 1e6), counts, RUNS, 4, 5, {"echo": 200.0})
    posts = DeliveryMetrics(waiting=6, dead=7, delivered=ended_count, failed=failed_count, given_up=given_up)
    return FleetReading(metrics, posts)


MEMORY = Memory(1 << 20, 1 << 30, evicts=False)


def load(number: int) -> WorkerLoad:
    return WorkerLoad(f"celery@host-{number}.example.com", "ready", 4, 3, 1, 0, ("celery", "gpu"), 0.0)


class TestView:
    def test_the_view(self) -> None:
        view = View(
            reading(2, ended_count=30, failed_count=2, given_up=10),
            reading(ended_count=10, failed_count=1),
            MEMORY,
            ["echo", "idle"],
            [load(1)],
        )

        assert view.lines(80, 24) == [
            "1970-01-12 13:46:42 UTC   store 1.0 MiB of 1.0 GiB",
            "tasks     12 waiting (oldest 3 min 20 s), 3 running, 2 suspended",
            "          1 blocked, 0 delegated, 4 waiting for an answer, 5 dead letters",
            "ended     10.0/s completed, 0.5/s failed, 0.0/s canceled, 0.0/s rejected",
            "webhooks  6 waiting, 7 given up",
            "posts     10.0/s delivered, 0.5/s failed, 1.5/s given up",
            "",
            "AGENT  ENDED/S  FAILED/S  OLDEST      COMPLETED  FAILED  CANCELED  LOST",
            "echo   10.5     0.5       3 min 20 s  30         2       0         0",
            "idle   0.0      0.0       -           0          0       0         0",
            "",
            "WORKER                     STATE  ACTIVE  PREFETCHED  OTHER  QUEUES",
            "celery@host-1.example.com  ready  3 of 4  1           0      celery gpu",
        ]

    @pytest.mark.parametrize(("agents", "workers"), [(50, 50), (50, 1), (1, 50), (1, 0)])
    def test_a_large_fleet_fits_a_small_terminal(self, agents: int, workers: int) -> None:
        current_reading = reading(1, agents=agents)
        names = ["echo", *(f"agent-{number}" for number in range(1, agents))]
        loads = [load(number) for number in range(workers)]
        lines = View(current_reading, current_reading, MEMORY, names, loads).lines(80, 23)

        assert len(lines) <= 23
        assert max(map(len, lines)) <= 80
        assert any(line.startswith("… ") for line in lines) == (agents + workers > 20)
        if agents == workers == 50:
            assert [line for line in lines if line.startswith("…")] == ["… 44 more agents", "… 45 more workers"]

    def test_without_workers_says_why(self) -> None:
        current_reading = reading()

        assert View(current_reading, current_reading, MEMORY, [], []).lines(80, 24)[-1] == "no worker replies"
        assert (
            View(current_reading, current_reading, MEMORY, [], [], "cannot query the workers: X").lines(80, 24)[-1]
            == "cannot query the workers: X"
        )

    def test_json_has_the_same_values(self) -> None:
        now, before = reading(2, ended_count=30, given_up=9), reading(ended_count=10)
        fields = json.loads(json_line(View(now, before, MEMORY, ["echo"], [load(1)]).fields()))

        assert fields["agents"]["echo"]["endedPerSecond"] == 10.0
        assert (fields["runs"], fields["paused"], fields["deadLetters"]) == (RUNS, 4, 5)
        assert fields["webhooks"] == {
            "waiting": 6, "dead": 7, "deliveredPerSecond": 10.0, "failedPerSecond": 0.0, "givenUpPerSecond": 1.0,
        }  # fmt: skip
        assert fields["workers"][0]["prefetched"] == 1

    def test_throughput_is_the_mean_of_the_latest_readings(self) -> None:
        readings = iter([reading(second, ended_count=0 if second < 20 else 100) for second in range(40)])
        views = Views(lambda: (next(readings), MEMORY), ["echo"], idle_loads())

        rates = [views.next().fields()["agents"]["echo"]["endedPerSecond"] for _ in range(40)]

        assert (rates[19], rates[20], rates[29], rates[30]) == (0.0, 10.0, 10.0, 0.0)


def idle_loads() -> Any:
    return SimpleNamespace(latest={}, error="")


def test_a_silent_worker_is_shown_for_a_while(redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, store = ManualClock(), SyncStore(redis_server.store_url)
    app = Celery("top", broker="memory://", set_as_current=False)
    loads = WorkerLoads(app, store, "a2a", clock)
    identity = top.server_of(store).identity
    store.close()
    replies = {
        name: {"slots": 4, "active": 1, "prefetched": 2, "others": 3, "queues": ["q"], "drained": []} for name in "abc"
    }
    reports = {
        "a": {"store": {"identity": identity}, "settings": {"key_prefix": "a2a"}},
        "b": {"store": {"identity": "another"}, "settings": {"key_prefix": "a2a"}},
        "c": {"error": "an older release"},
        "stock": {"error": "its app has no A2A object", "queues": ["q"], "tasks": ["other"]},
    }

    def broadcast(command: str, destination: Sequence[str] = (), **_: Any) -> list[dict[str, Any]]:
        if command == "ping":
            return [{name: {"ok": "pong"}} for name in (*replies, "stock")]
        assert "stock" not in destination, "a worker without this package does not know the command"
        return [{name: replies[name]} for name in destination]

    monkeypatch.setattr(app.control, "broadcast", broadcast)
    monkeypatch.setattr(top, "worker_reports", lambda app, timeout, nodes: {node: reports[node] for node in nodes})

    loads.update()
    assert {name: worker_load.state for name, worker_load in loads.latest.items()} == {"a": "ready", "c": "ready"}
    replies["c"]["drained"] = ["q"]
    del replies["a"]
    clock.advance(top.SILENT_FOR - 1)
    loads.update()
    assert {name: worker_load.state for name, worker_load in loads.latest.items()} == {"a": "silent", "c": "drained"}
    clock.advance(1)
    loads.update()
    assert list(loads.latest) == ["c"]


def show_on_this_terminal() -> None:
    """Show the view with a clock that advances by one second for each typed space. The third reading fails."""
    clock = ManualClock()

    def read() -> tuple[FleetReading, Memory]:
        seconds = clock.monotonic() - START
        if seconds == 3:
            raise StoreUnavailable("Redis is unavailable")
        return reading(seconds, ended_count=round(seconds) * 20), MEMORY

    with keyboard() as wait:

        def wait_for_key(_: float) -> str | None:
            key = wait(60)
            clock.advance(1)
            return None if key == " " else key

        try:
            show_views(Views(read, ["echo"], idle_loads()), wait_for_key)
        except KeyboardInterrupt:
            print("interrupted")
        except Exception as e:
            print(type(e).__name__)
    print("restored")


PROGRAM = "from tests.unit.test_top import show_on_this_terminal; show_on_this_terminal()"


class TestOnATerminal:
    def test_each_second_shows_the_new_values(self) -> None:
        with terminal(PROGRAM) as screen:
            screen.shows("13:46:40 UTC")
            screen.types(" ")
            screen.shows("13:46:41 UTC")
            screen.shows("20.0/s completed")
            screen.types("q")

            assert screen.ends() == 0
            first = screen.screen.partition("\x1b[H")[2].partition("\x1b[J")[0].split("\r\n")
            assert len(first) <= 24
            assert first[0].partition("\x1b")[0].endswith("   q quits")
            assert screen.screen.startswith("\x1b[?1049h\x1b[?25l")
            assert screen.screen.endswith("\x1b[?25h\x1b[?1049lrestored\r\n")

    @pytest.mark.parametrize("ending", [lambda screen: screen.types(CTRL_C), lambda screen: screen.types("Q")])
    def test_ctrl_c_and_q_restore_the_terminal(self, ending: Callable[[Terminal], None]) -> None:
        with terminal(PROGRAM) as screen:
            screen.shows("13:46:40 UTC")
            ending(screen)

            assert screen.ends() == 0
            assert re.search("\x1b\\[\\?25h\x1b\\[\\?1049l(interrupted\r\n)?restored\r\n$", screen.screen)

    def test_the_last_view_stays_while_the_store_is_unavailable(self) -> None:
        with terminal(PROGRAM) as screen:
            for second in range(3):
                screen.shows(f"13:46:4{second} UTC")
                screen.types(" ")
            screen.shows("store unavailable, trying again: Redis is unavailable")
            screen.types(" ")
            screen.shows("13:46:44 UTC")
            screen.types("q")

            assert screen.ends() == 0
