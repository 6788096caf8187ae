"""Catalog of the moves: the moves that all tests of the store share, and moves that reach the other scripts."""

from __future__ import annotations

from typing import Any

from a2a_celery.lifecycle.states import (
    FAILED,
    INTERRUPTED,
    SUBMITTED,
    TERMINAL,
    WORKING,
)
from tests.support.store.walk import MOVES, Move
from tests.tools.oracle import operator_moves, run_moves, task_moves
from tests.tools.oracle.recorder import Catalog

MORE_MOVES: dict[str, Move] = {
    "create_again": (task_moves.create_again, ()),
    "create_known": (task_moves.create_known, ()),
    "create_limited": (task_moves.create_limited, ()),
    "continue_limited": (task_moves.continue_limited, ("", "running")),
    "continue_again": (task_moves.continue_again, ("", "running")),
    "answer_many": (task_moves.answer_many, ("running", "queued")),
    "publish_on_accept": (task_moves.publish_on_accept, ()),
    "create_plain": (run_moves.create_plain, ()),
    "record_plain": (run_moves.record_plain, ("queued", "running")),
    "create_large": (task_moves.create_large, ()),
    "create_descendants": (task_moves.create_descendants, ("running", "queued", "suspended")),
    "end_with_children": (task_moves.end_with_children, ("queued",)),
    "tick": (task_moves.tick, ()),
    "unlist": (task_moves.unlist, ("",)),
    "read": (task_moves.read_differently, ()),
    "list_filtered": (task_moves.list_filtered, ()),
    "claim_differently": (run_moves.claim_differently, ("queued", "running")),
    "append_differently": (run_moves.append_differently, ("running",)),
    "settle_differently": (run_moves.settle_differently, ("running",)),
    "settle_with_another_token": (run_moves.settle_with_another_token, ("running",)),
    "leave_differently": (run_moves.leave_differently, ("running",)),
    "read_run": (run_moves.read_run, ("running",)),
    "save_session": (run_moves.save_session, ("running",)),
    "renew": (run_moves.renew, ("running",)),
    "take_twice": (run_moves.take_twice, ("running",)),
    "signal_differently": (run_moves.signal_differently, ("", "suspended", "running", "queued")),
    "lapse_differently": (run_moves.lapse_differently, ("running",)),
    "end_retried": (run_moves.end_retried, ("queued", "running")),
    "poll_canvas": (run_moves.poll_canvas, ("delegated",)),
    "publish_differently": (run_moves.publish_differently, ("queued",)),
    "requeue_twice": (run_moves.requeue_twice, ("",)),
    "deliver_differently": (operator_moves.deliver_differently, ()),
    "request_posts": (operator_moves.request_posts, ()),
    "configure_many": (operator_moves.configure_many, ()),
    "configure_differently": (operator_moves.configure_differently, ()),
    "archive_differently": (operator_moves.archive_differently, ("",)),
    "announce": (operator_moves.announce, ()),
    "open": (operator_moves.open_store, ()),
}
FEATURE_MOVES: dict[str, tuple[str, Move]] = {
    "acquire_orphans": ("blobs in an object store", (run_moves.acquire_orphans, ())),
    "expire_new_blobs": ("blobs in an object store", (run_moves.expire_new_blobs, ())),
}
STATES: dict[str, frozenset[Any]] = {
    "end_pause": frozenset(INTERRUPTED),
    "continue_again": frozenset({SUBMITTED, WORKING, *INTERRUPTED}),
    "continue_limited": frozenset({WORKING, *INTERRUPTED}),
    "requeue": frozenset({FAILED}),
    "requeue_twice": frozenset({FAILED}),
    "archive": frozenset(TERMINAL),
    "archive_differently": frozenset(TERMINAL),
    "expire": frozenset(TERMINAL),
}
OFTEN_FULL = (
    *("append_differently", "settle_differently", "leave_differently", "lapse_differently", "poll_canvas", "end_pause"),
    *("create_plain", "record_plain", "resume", "requeue", "requeue_twice"),
)
FREQUENT = [
    *(["claim"] * 16 + ["create_child", "answer", "deliver", "signal", "tick"] * 2),
    *(["suspend", "resume", "end", "pause", "delegate", "end_pause", "poll_canvas"] * 3),
    *(["settle_differently", "leave_differently", "append_differently"] * 2 + ["claim_differently"] * 6),
    *("write_events", "lose", "configure", "replay", "requeue_twice", "record_plain"),
]
CATALOG = Catalog(
    {**MOVES, **MORE_MOVES, **{name: move for name, (_, move) in FEATURE_MOVES.items()}},
    {name: feature for name, (feature, _) in FEATURE_MOVES.items()},
    STATES,
    OFTEN_FULL,
    FREQUENT,
)
