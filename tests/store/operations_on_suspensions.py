"""Operations on suspended runs and on signals. ``test_operations`` runs them."""

from __future__ import annotations

from typing import Any

from a2a_celery.lifecycle.references import RunRef
from a2a_celery.lifecycle.states import WORKING
from a2a_celery.store import Keys, Operation
from a2a_celery.store.runs.suspension import resume_due_runs, suspend_run, take_signal
from a2a_celery.store.tasks.signals import send_signal
from tests.support.store.seeds import ANN, Seeds, status
from tests.support.store.suspensions import received_entry, wait_for

REF = RunRef("t", 1)


async def _claim(seeds: Seeds) -> str:
    return (await seeds.claim_run(await seeds.create_task(task_id="t"))).token


async def _suspend(keys: Keys, seeds: Seeds) -> Operation[Any]:
    token, events = await _claim(seeds), [status(WORKING)]
    return suspend_run(keys, REF, token=token, written_count=0, events=events, wait=wait_for("go"), options=b"")


async def _resume_due(keys: Keys, seeds: Seeds) -> Operation[Any]:
    token = await _claim(seeds)
    wait = wait_for("go")
    await seeds.store.run(suspend_run(keys, REF, token=token, written_count=0, events=[], wait=wait, options=b""))
    return resume_due_runs(keys, limit=10)


async def _take_signal(keys: Keys, seeds: Seeds) -> Operation[Any]:
    token = await _claim(seeds)
    await seeds.store.run(send_signal(keys, ANN, "t", name="go", payload=b"1", signal_id="s"))
    return take_signal(keys, REF, token=token, confirmed=0, signal="go", received=received_entry("go"))


async def _send_signal(keys: Keys, seeds: Seeds) -> Operation[Any]:
    await _claim(seeds)
    return send_signal(keys, ANN, "t", name="go", payload=b"1", signal_id="s")


SUSPENSION_OPERATIONS = [_suspend, _resume_due, _take_signal, _send_signal]
