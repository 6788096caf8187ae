"""Forwarding of runs whose turn began with a different version of the agent's code.

In addition to each queue with runs of a versioned agent, a worker consumes the version queue of the version that it has
loaded. A worker that receives a run of a different version publishes the run to that version's queue. If no worker
consumes that queue, the worker executes the run with the version that it has loaded.
"""

from __future__ import annotations

import logging

from ..agents import Agent
from ..dispatch import RunOptions, version_queue_name
from ..errors import BrokerUnavailable
from ..lifecycle.references import RunRef
from ..store.admin.version_workers import version_workers
from ..store.client.connection import run_with_retry
from ..store.runs.commands import OtherCodeVersion
from .process.run_host import RunHost

logger = logging.getLogger(__name__)


async def forward_run(host: RunHost, agent: Agent, ref: RunRef, other: OtherCodeVersion) -> bool:
    """Publish a run to the workers that have the version of the agent with which the turn began.

    If the broker does not accept the message, a watcher publishes the run again.

    Returns:
        True if another worker will execute the run, or False if no worker has that version and the caller must execute
        the run.
    """
    options = RunOptions.from_json(other.options)
    queue = host.publisher.queues.queue_of(agent.name, options)
    name = version_queue_name(queue, agent.name, other.code_version) if queue else ""
    workers = await run_with_retry(host.store, version_workers(host.keys))
    if all(worker.queue != name for worker in workers):
        logger.warning(
            "run %s began with version %s of agent %r, which no worker has: it continues with version %s",
            *(ref.name, other.code_version, agent.name, agent.version),
        )
        return False
    try:
        await host.publisher.publish_async(agent.name, ref, options, version_queue=name)
    except BrokerUnavailable as e:
        logger.warning("run %s will be published by the watcher: %s", ref.name, e)
    else:
        text = "run %s was published for workers with version %s of agent %r"
        logger.info(text, ref.name, other.code_version, agent.name)
    return True
