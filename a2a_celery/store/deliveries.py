"""The verbs about delivery lines: what is owed to push-notification configs, for deliverers and for operators.

A line is a task's log on its way to one of the task's configs: the log is the queue, and the line a place in it. Every
script that writes an event makes the lines of its task due. A deliverer takes lines, reads on in each one's log
(`read_log` behind `delivered`), and says after each event what became of it. It has a line in hand until it gives it
back, or another takes it when its lease is over; whatever it says later is not believed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import unquote
from uuid import uuid4

from .connection import SyncStore
from .keys import Keys, quoted
from .operation import Argument, Operation, script

PAGE = 200

Said = Mapping[str, str | int]
"""What an operator is told of a failure: reason, and status and answer of the receiver, if there was one."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line in hand, with its config as it was sealed. Events behind version `delivered` are owed to it; `version` was
    the log's last. Since one was delivered it failed `failures` times, the first time `failing_for` seconds ago."""

    task_id: str
    context_id: str
    agent: str
    config_id: str
    sealed: bytes = field(repr=False)
    delivered: int
    version: int
    failures: int
    failing_for: float
    token: str = field(repr=False)
    trace: str = ""
    """W3C traceparent of the task's newest turn, "" for none."""

    leased_at: float = field(default=0.0, compare=False)
    """Time of the store when the line was leased, in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """How a line stands. Times are the store's, in µs; 0: there is none. `now_us` is when this was read."""

    task_id: str
    config_id: str
    agent: str
    context_id: str
    delivered: int
    version: int
    """The log's last."""

    in_hand: bool
    """A deliverer has it, until `due_us`."""

    failures: int
    """Since an event was delivered."""

    first_failed_us: int
    due_us: int
    said: Said
    """Of the newest failure since an event was delivered; empty for none."""

    said_us: int
    died_us: int
    """When it was given up."""

    now_us: int = field(compare=False)

    @property
    def how(self) -> Literal["dead", "failing", "waiting", "delivered"]:
        """What a list of deliveries calls it."""
        if self.died_us:
            return "dead"
        if self.delivered >= self.version:
            return "delivered"
        return "failing" if self.failures else "waiting"


@dataclass(frozen=True, slots=True)
class DeliveryPage:
    """Some of a list, and the cursor of what follows; None: that was all."""

    rows: list[Delivery]
    cursor: int | None


@dataclass(frozen=True, slots=True)
class DeliveryFigures:
    """How many lines there are: `waiting` for an event or for its next post, `dead`: given up. And how often a post was
    `delivered`, has `failed`, and ended its line (`given_up`), since there is a store."""

    waiting: int
    dead: int
    delivered: int
    failed: int
    given_up: int


def delivery_figures(keys: Keys) -> Operation[DeliveryFigures]:
    """The figures of all deliveries."""

    def parse(answer: Sequence[Any]) -> DeliveryFigures:
        waiting, dead, *rest = answer
        counts = {name.decode(): int(times) for name, times in zip(rest[::2], rest[1::2], strict=True)}
        posts = (counts.get(name, 0) for name in ("delivered", "failed", "given_up"))
        return DeliveryFigures(int(waiting), int(dead), *posts)

    return Operation(script("delivery_figures"), [keys.deliveries, keys.dead_deliveries], [], parse)


def take_due_deliveries(keys: Keys, *, limit: int, lease_us: int) -> Operation[list[Line]]:
    """Up to `limit` lines that are due, in hand for `lease_us` each; nobody else gets them meanwhile.

    Those of an answer that is lost are due again after the lease.
    """
    token = uuid4().hex

    def parse(answer: Sequence[Sequence[bytes]]) -> list[Line]:
        return [_line(row, token) for row in answer]

    return Operation(script("take_due_deliveries"), [keys.deliveries], [keys.prefix, limit, lease_us, token], parse)


def note_delivered(
    keys: Keys, line: Line, version: int, *, lease_us: int, posted: bool = True
) -> Operation[Literal["more", "done", "lost"]]:
    """The line's events up to `version` were delivered; its failures are forgotten. Not `posted`: nobody wants them.

    "more": it stays in hand for another `lease_us`, for more is owed to it; "done": nothing is, so it was given back;
    "lost": it is another's, or its config was deleted or replaced, or its task is gone. With the version that it is at
    already, and not `posted`, this prolongs the lease, and tells whether the line is still ours.
    """
    return _settle("note_delivered", keys, line, [version, lease_us, int(posted)], _word)


def postpone_delivery(
    keys: Keys, line: Line, *, after_us: int, counts: bool | Literal["age"], said: Said | None = None
) -> Operation[bool]:
    """Gives the line back, due in `after_us`; `counts`: as a failure. A deliverer that stops gives it back with 0.

    "age": nothing was posted, so nothing has failed, but `failing_for` counts from now on, if it does not yet. `said`
    is kept for operators. False: the line was not ours any more.
    """
    as_failure = counts if counts == "age" else int(counts)
    return _settle("postpone_delivery", keys, line, [after_us, as_failure, json.dumps(said) if said else ""], bool)


def give_up_delivery(keys: Keys, line: Line, *, said: Said) -> Operation[bool]:
    """Gives the line up: nothing is delivered to it until it is replayed or its config replaced. It keeps its place.

    `said` is kept for operators. False: the line was not ours any more.
    """
    return _settle("give_up_delivery", keys, line, [json.dumps(said)], bool)


def replay_delivery(keys: Keys, task_id: str, config_id: str) -> Operation[Literal["missing", "replayed", "alive"]]:
    """Makes a line that was given up due at once, from its place; "alive": it was not, or somebody else did."""
    arguments = [quoted(config_id), uuid4().hex]
    return Operation(script("replay_delivery"), keys.task(task_id), arguments, _word)


def read_delivery(keys: Keys, task_id: str, config_id: str) -> Operation[Delivery | None]:
    """How the line of that config stands; None when there is none."""

    def parse(answer: Sequence[Any] | None) -> Delivery | None:
        return None if answer is None else _delivery(answer[1], int(answer[0]))

    return Operation(script("read_delivery"), keys.task(task_id), [quoted(config_id)], parse)


def scan_deliveries(keys: Keys, *, dead: bool = False, cursor: int = 0) -> Operation[DeliveryPage]:
    """A page of the lines to which something is owed; of those that were given up if `dead`. A row may come twice."""

    def parse(answer: Sequence[Any]) -> DeliveryPage:
        following, now_us, *rows = answer
        return DeliveryPage([_delivery(row, int(now_us)) for row in rows], int(following) or None)

    name = keys.dead_deliveries if dead else keys.deliveries
    return Operation(script("scan_deliveries"), [name], [keys.prefix, cursor, PAGE, int(not dead)], parse)


def deliveries(store: SyncStore, keys: Keys, *, dead: bool = False) -> Iterator[Delivery]:
    """All lines that `scan_deliveries` gives, each once, in no order.

    Raises:
        StoreUnavailable: Redis can't be reached, or refuses.
    """
    seen: set[tuple[str, str]] = set()
    cursor: int | None = 0
    while cursor is not None:
        page = store.run(scan_deliveries(keys, dead=dead, cursor=cursor))
        for row in page.rows:
            if (row.task_id, row.config_id) not in seen:
                seen.add((row.task_id, row.config_id))
                yield row
        cursor = page.cursor


def _settle(name: str, keys: Keys, line: Line, rest: list[Argument], parse: Any) -> Operation[Any]:
    arguments = [quoted(line.config_id), line.token, *rest]
    return Operation(script(name), keys.task(line.task_id), arguments, parse)


def _word(answer: bytes) -> Any:
    return answer.decode()


def _line(row: Sequence[bytes], token: str) -> Line:
    task_id, context_id, agent, config, sealed, delivered, version, failures, failing_us, trace, now_us = row
    return Line(
        task_id.decode(),
        context_id.decode(),
        agent.decode(),
        unquote(config.decode()),
        sealed,
        int(delivered),
        int(version),
        int(failures),
        int(failing_us) / 1e6,
        token,
        trace.decode(),
        int(now_us) / 1e6,
    )


def _delivery(row: Sequence[bytes], now_us: int) -> Delivery:
    task_id, config, agent, context, delivered, version, held, failures, failed, due, said, said_at, died = (
        value.decode() for value in row
    )
    return Delivery(
        task_id,
        unquote(config),
        agent,
        context,
        int(delivered),
        int(version),
        held == "1",
        int(failures),
        int(failed or 0),
        int(float(due or 0)),
        json.loads(said or "{}"),
        int(said_at or 0),
        int(died or 0),
        now_us,
    )
