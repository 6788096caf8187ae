"""Announcements of workers that consume version queues; see ``dispatch.version_queues``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import astuple, dataclass

from ..keys import Keys
from ..operation import Operation
from .start_check import record_heartbeat


@dataclass(frozen=True, slots=True)
class VersionWorker:
    """Worker and one of the version queues that it consumes. A version queue contains the runs for one version of an
    agent's code."""

    worker: str
    queue: str
    agent: str
    code_version: str


def announce_versions(
    keys: Keys, version_workers: Sequence[VersionWorker], *, withdraws: bool = False
) -> Operation[list[VersionWorker]]:
    """Announce the version queues that a worker consumes. The announcement expires after `ANNOUNCEMENT_TTL_US`.

    Args:
        keys: Keys of the deployment.
        version_workers: Entry for each version queue of the worker, or an empty sequence to only read the
            announcements.
        withdraws: True to withdraw the announcement of `version_workers` instead.

    Returns:
        An entry for each version queue of each worker.
    """

    def parse(reply: Sequence[bytes]) -> list[VersionWorker]:
        return [VersionWorker(*fields) for announcement in reply for fields in json.loads(announcement)]

    announcement = json.dumps([astuple(queue) for queue in version_workers]) if version_workers else ""
    return record_heartbeat(keys, keys.version_workers, announcement, parse, withdraws=withdraws)


def version_workers(keys: Keys) -> Operation[list[VersionWorker]]:
    """Read the unexpired announcements of all workers that consume version queues."""
    return announce_versions(keys, ())
