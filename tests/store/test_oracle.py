"""The oracle for the store: it finds no difference between equal scripts, it finds each fault of a mutated script, and
its sequences reach each reply of each script."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product

import pytest

from a2a_celery.store.operation import script
from a2a_celery.store.verbs import SECTIONS
from tests.tools.oracle.outcomes import script_names, unreached
from tests.tools.oracle.recorded_store import Outcomes
from tests.tools.oracle.sequences import Mutation, Recording, Scripts, record, running_store

pytestmark = pytest.mark.merge

Number = tuple[int, int]
"""Seed and number of a sequence."""

FIRST: Sequence[Number] = (
    *((3, 13), (2, 3), (3, 0), (4, 18), (4, 19), (10, 15), (23, 11), (28, 19), (0, 18), (1, 4), (8, 13)),
    *((21, 15), (13, 14), (26, 6), (2, 15), (3, 7), (17, 12), (19, 2), (1, 11), (1, 16), (19, 0), (0, 15)),
    *((1, 8), (1, 17), (2, 12), (2, 19), (5, 12), (10, 18), (13, 0), (13, 11), (14, 8), (16, 19), (22, 1)),
    *((23, 6), (24, 13), (21, 5), (4, 4)),
)
"""Sequences that run first: the output of ``python -m tests.tools.oracle cover --seeds 30 --sequences 20``, which
together have all outcomes of all sequences, and those that find the rarest faults. If the sequences are outdated, the
tests only take longer."""

ALL = [*FIRST, *(number for number in product(range(30), range(20)) if number not in FIRST)]
"""Sequences that reach each reply, and that find each fault."""

BATCH = len(FIRST)

MUTATIONS = {
    "an outdated run is claimed": (
        "runs/claim_run.lua",
        "if r.run ~= run then",
        "if false then",
    ),
    "a run without the claim's token settles": (
        "runs/settle_run.lua",
        "or r.token ~= token then return {'lost'}",
        "then return {'lost'}",
    ),
    "a repeated settlement is refused": (
        "lib/runs.lua",
        "if settled_token == token then",
        "if settled_token ~= token then",
    ),
    "a lost run has one more attempt": (
        "runs/lapse_run.lua",
        "r.attempt < tonumber(r.max_attempts)",
        "r.attempt <= tonumber(r.max_attempts)",
    ),
    "a task stays in the index of its former state": (
        "lib/indexes.lua",
        "redis.call('ZREM', index .. state, task_tag(keys))",
        "",
    ),
    "runs of a context run at the same time": (
        "lib/context_queue.lua",
        "return first and first ~= task_tag(keys)",
        "return false",
    ),
    "a delivered event is due again": (
        "features/webhooks/scripts/lib/deliveries.lua",
        "if delivered < r.version then",
        "if delivered <= r.version then",
    ),
    "a signal is received twice": (
        "lib/signals.lua",
        "redis.call('LREM', keys.signals, 1, entry)",
        "",
    ),
    "a repeated tick starts a second task": (
        "features/schedules/section.lua",
        "if known then return {'repeated'",
        "if false then return {'repeated'",
    ),
    "the children of an ended task are not cancelled": (
        "lib/cleanup.lua",
        "redis.call('ZADD', set, micros(now()), task_tag(keys))",
        "",
    ),
    "one task more than the limit is accepted": (
        "features/limits/section.lua",
        "if open >= (limits.concurrent or math.huge)",
        "if open > (limits.concurrent or math.huge)",
    ),
    "a full store accepts a large event": (
        "lib/events.lua",
        "if bytes <= SMALL_WRITE then",
        "if true then",
    ),
    "a session is saved over a newer session": (
        "features/sessions/section.lua",
        "if newer then",
        "if false then",
    ),
    "a signal with a known id is delivered again": (
        "tasks/send_signal.lua",
        "' ' .. id .. ' ', 1, true) then",
        "' ' .. id .. ' ', 1, true) and false then",
    ),
    "a message after the newest place waits": (
        "tasks/continue_task.lua",
        "redis.call('LLEN', keys.turns) >= MAX_WAITING_TURNS",
        "redis.call('LLEN', keys.turns) > MAX_WAITING_TURNS",
    ),
    "a requested post is sent again": (
        "features/webhooks/scripts/settle_requested_post.lua",
        "if id ~= post or not attempt then",
        "if true then",
    ),
    "the journal of a dead letter is lost": (
        "features/dead_letters/requeue_task.lua",
        "redis.call('RENAME', dead_keys.journal, new_keys.journal)",
        "redis.call('DEL', dead_keys.journal)",
    ),
    "the message of a blocked run is published": (
        "tasks/create_task.lua",
        "not blocked and publish_sections(keys, r)",
        "publish_sections(keys, r)",
    ),
    "an archived task stays in its indexes": (
        "admin/remove_archived.lua",
        "remove_from_indexes(keys, r, r.state)",
        "",
    ),
    "a folder of blobs is removed twice": (
        "blobs/acquire_orphaned_blobs.lua",
        "for _, tag in ipairs(due) do redis.call('ZADD', orphaned_blobs, micros(at + REMOVE_FOR_US), tag) end",
        "",
    ),
    "a claimed run has the state of a result": (
        "runs/record_result.lua",
        " or r.phase ~= 'queued' then return",
        " then return",
    ),
}


class Recordings:
    """Sequences of the unchanged scripts.

    Attributes:
        url: URL of the store for the sequences.
        texts: Texts of the scripts by name.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        with Scripts():
            self.texts = script_texts()
        self._recorded: dict[Number, Recording] = {}

    def of(self, numbers: Sequence[Number]) -> list[tuple[Number, Recording]]:
        """Return sequences, which are run once."""
        missing = [number for number in numbers if number not in self._recorded]
        if missing:
            with Scripts():
                self._recorded |= {number: record(self.url, *number) for number in missing}
        return [(number, self._recorded[number]) for number in numbers]


@pytest.fixture(scope="module")
def recordings() -> Iterator[Recordings]:
    with running_store() as url:
        yield Recordings(url)


def script_texts() -> dict[str, str]:
    """Return the texts of the scripts that this process uses, by name, with the sections of all features."""
    sections = "".join(code.text for code in SECTIONS.values())
    texts = {name: script(name).text for name in script_names()}
    return {name: text + sections if "_sections(" in text else text for name, text in texts.items()}


def batches() -> Iterator[Sequence[Number]]:
    """Yield all sequences in batches, because a change of the scripts takes as long as a sequence."""
    for start in range(0, len(ALL), BATCH):
        yield ALL[start : start + BATCH]


def test_equal_scripts_do_not_differ(recordings: Recordings) -> None:
    originals = recordings.of(ALL[:BATCH])
    with running_store() as url, Scripts():
        for number, original in originals:
            assert record(url, *number).lines == original.lines


def test_each_reply_is_reached(recordings: Recordings) -> None:
    outcomes: Outcomes = Counter()
    for batch in batches():
        for _, recording in recordings.of(batch):
            outcomes.update(recording.outcomes)
        if not unreached(outcomes):
            return
    assert unreached(outcomes) == []


@pytest.mark.parametrize("mutation", MUTATIONS.values(), ids=MUTATIONS)
def test_each_fault_is_found(mutation: Mutation, recordings: Recordings) -> None:
    """Only sequences that call a mutated script can differ."""
    for batch in batches():
        originals = recordings.of(batch)
        with Scripts(mutation):
            mutated_scripts = {name for name, text in script_texts().items() if text != recordings.texts[name]}
            assert mutated_scripts
            for number, original in originals:
                if mutated_scripts & original.scripts and record(recordings.url, *number).lines != original.lines:
                    return
    pytest.fail(f"{len(ALL)} sequences do not differ")
