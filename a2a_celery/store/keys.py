"""Keys of the store: name, Redis type and lifetime.

The keys of one task share the hash tag ``{task_id}``, called the task's tag. The keys of a live task do not expire. The
script that ends the task lets them expire after `retention`, or adds the task to the list of tasks for the archive;
archiving deletes them. Lists of live tasks empty themselves, and lists of ended tasks expire with their newest member.
``tests/store/test_keys.py`` fails on a key without such a rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import quote, unquote


def quoted(text: str) -> str:
    """Percent-encode `text` as one part of a key, without colons, braces and spaces."""
    return quote(text, safe="-._~@")


def tag_in(keys: Sequence[str]) -> str:
    """Return the tag of the task whose twelve keys are the last of `keys`: the task that a script writes."""
    name = keys[-12]
    return name[name.index("{") + 1 : name.rindex("}")]


class TaskKeys(NamedTuple):
    """Keys of one task, in the order in which every script receives them.

    All expire `retention` seconds after the task's end, or are deleted when it is archived.
    """

    record: str  # hash: owner, agent, state, version, run, request …; see scripts/lib for the fields
    log: str  # list: "<recorded_us> <event>", version n at index n - 1
    history: str  # list: events whose message belongs to the history
    artifacts: str  # list: artifact ids, in order of appearance
    chunks: str  # prefix of one list per artifact: its chunks; the artifact id follows
    metadata: str  # hash: key → serialized google.protobuf.Value
    turns: str  # list: messages that wait for the end of a run; deleted at the task's end
    notifications: str  # channel: the version that was written, and " final" after a final state
    push: str  # hash: push-notification configs with their delivery cursors; see scripts/lib for the fields
    execution: str  # list: newest 1,000 steps of the task's runs, see lifecycle/execution.py
    journal: (
        str  # hash: journal of the turn, see lifecycle/journal.py; deleted at the task's end, except of a dead letter
    )
    signals: str  # list: signals that no run has received; deleted at the task's end, except of a dead letter


@dataclass(frozen=True, slots=True)
class Scope:
    """Owner of a task. A task is invisible in other scopes.

    `agent` is the registered name of the agent. `tenant` and `owner` come from the caller, "" for none.
    """

    agent: str = ""
    tenant: str = ""
    owner: str = ""

    def __str__(self) -> str:
        return "/".join(quoted(part) for part in (self.agent, self.tenant, self.owner))

    @property
    def account(self) -> str:
        """Account whose limits apply: ``/<owner>`` for an authenticated owner in all tenants, otherwise
        ``<tenant>/``."""
        return f"/{quoted(self.owner)}" if self.owner else f"{quoted(self.tenant)}/"

    @classmethod
    def parse(cls, text: str) -> Scope:
        """Parse a scope that was written by `str`."""
        return cls(*(unquote(part) for part in text.split("/")))


@dataclass(frozen=True, slots=True)
class Keys:
    """Names of all keys of a store with the given prefix."""

    prefix: str = "a2a"

    def task(self, task_id: str) -> TaskKeys:
        """Return the keys of the task `task_id`."""
        base = f"{self.prefix}:{{{quoted(task_id)}}}"
        return TaskKeys(
            record=f"{base}:task",
            log=f"{base}:log",
            history=f"{base}:history",
            artifacts=f"{base}:artifacts",
            chunks=f"{base}:artifact:",
            metadata=f"{base}:metadata",
            turns=f"{base}:turns",
            notifications=f"{base}:notifications",
            push=f"{base}:push",
            execution=f"{base}:execution",
            journal=f"{base}:journal",
            signals=f"{base}:signals",
        )

    @property
    def leases(self) -> str:
        """zset: ``<task_id>.<run>`` of each claimed run → µs at which its lease ends; emptied when runs end."""
        return f"{self.prefix}:leases"

    @property
    def dispatch(self) -> str:
        """zset: ``<task_id>.<run>`` of each queued run → µs at which it is published again; emptied by claims."""
        return f"{self.prefix}:dispatch"

    @property
    def blocked(self) -> str:
        """zset: ``<task_id>.<run>`` of each blocked run → µs since which another run of its context precedes it;
        emptied when runs end."""
        return f"{self.dispatch}:blocked"

    def queue(self, agent: str) -> str:
        """zset: tag of each task of the agent whose newest run is queued → µs since which it waits; exists only while
        `agent_max_queue` is set; emptied by claims and ends."""
        return f"{self.prefix}:queue:{quoted(agent)}"

    @property
    def stored(self) -> str:
        """hash: `Scope.account` → bytes of its tasks, ``*`` → bytes of all tasks; exists only while `store_max_bytes`
        or `owner_max_stored_bytes` is set; emptied as tasks expire."""
        return f"{self.prefix}:stored"

    @property
    def stored_expiring(self) -> str:
        """zset: ``<tag> <bytes> <account>`` of each counted task whose keys expire → µs at which they expire; emptied
        by later messages."""
        return f"{self.stored}:expiring"

    def requests(self, scope: Scope) -> str:
        """string: µs at which the account has its complete burst of requests to all agents again; expires then."""
        return f"{self.prefix}:requests:{scope.account}"

    @property
    def canvases(self) -> str:
        """zset: ``<task_id>.<run>`` of each delegated run → µs at which its canvas is polled; emptied by its end."""
        return f"{self.prefix}:canvases"

    @property
    def suspended(self) -> str:
        """zset: ``<task_id>.<run>`` of each suspended run → µs at which it continues, +inf if only a signal continues
        it; emptied by signals, ends and watchers."""
        return f"{self.prefix}:suspended"

    @property
    def pauses(self) -> str:
        """zset: tag of each interrupted task → µs at which the pause times out, +inf for never; emptied by answers,
        ends and watchers."""
        return f"{self.prefix}:pauses"

    @property
    def canceled_parents(self) -> str:
        """zset: tag of each canceled task with child tasks → µs at which a watcher cancels them; emptied by
        watchers."""
        return f"{self.prefix}:canceled_parents"

    @property
    def canceled_parent_notifications(self) -> str:
        """channel: a message for each task that joins `canceled_parents`."""
        return f"{self.canceled_parents}:notifications"

    @property
    def dead_letters(self) -> str:
        """zset: tag of each dead letter that was not requeued → µs at which its record expires.

        The record contains the request. The list expires with its newest member.
        """
        return f"{self.prefix}:dead_letters"

    @property
    def deliveries(self) -> str:
        """zset: ``<tag of the task> <quoted config id>`` of each delivery cursor with undelivered events → µs at which
        it is due; emptied by deliverers."""
        return f"{self.prefix}:deliveries"

    def posted(self, owner: str, host: str) -> str:
        """string: µs at which the owner has its complete byte budget for posts to the host again; expires then."""
        return f"{self.prefix}:byte_bucket:{owner}:{quoted(host)}"

    @property
    def delivery_notifications(self) -> str:
        """channel: a message for each delivery cursor that becomes due at once."""
        return f"{self.deliveries}:notifications"

    @property
    def requested_posts(self) -> str:
        """zset: each delivery cursor with requested posts → µs at which they are due; emptied by watchers."""
        return f"{self.deliveries}:requested"

    @property
    def delivery_outcomes(self) -> str:
        """hash: delivered, failed, given_up → number of posts with that outcome; permanent."""
        return f"{self.deliveries}:outcomes"

    def webhooks(self, account: str) -> str:
        """zset: each delivery cursor of the account → µs at which its task expires, +inf for a live task; expires with
        its newest member; exists only while `owner_max_webhooks` is set."""
        return f"{self.prefix}:webhooks:{account}"

    @property
    def blobs(self) -> str:
        """zset: tag of each task with blobs → µs at which a watcher checks that the task exists; emptied by
        watchers."""
        return f"{self.prefix}:blobs"

    @property
    def orphaned_blobs(self) -> str:
        """zset: tag of each missing task with blobs → µs at which a watcher removes its folder; emptied by watchers."""
        return f"{self.blobs}:orphaned"

    @property
    def metrics(self) -> str:
        """hash: metrics of all tasks, see ``metrics``; permanent."""
        return f"{self.prefix}:metrics"

    @property
    def dead_deliveries(self) -> str:
        """zset: each dead delivery cursor → µs at which its task expires, +inf for a live task; expires with its
        newest member."""
        return f"{self.prefix}:dead_deliveries"

    @property
    def secrets(self) -> str:
        """hash: fingerprint of each secret that configs or sessions are sealed with → key of their list; emptied by
        `secrets_in_use`."""
        return f"{self.prefix}:secrets"

    def sealed_with(self, fingerprint: str) -> str:
        """zset: delivery cursors and keys of sessions that are sealed with the secret → µs at which they expire, +inf
        for a live task; expires with its newest member."""
        return f"{self.prefix}:sealed:{quoted(fingerprint)}"

    @property
    def installation(self) -> str:
        """hash: state of the deployment; permanent.

        schema: see ``schema``. archive: "1" if ended tasks are archived, or "". border: µs of the newest archived
        status. adopted: "1" if tasks that ended before archiving began are archived too. clock: number of corrected
        jumps of the store's clock, see ``correct_clock``. clock_set_at: µs of the last jump, by the new time.
        """
        return f"{self.prefix}:installation"

    @property
    def archive(self) -> str:
        """zset: tag of each ended task for the archive → µs at which it is due; emptied by the archiver."""
        return f"{self.prefix}:archive"

    @property
    def archive_refused(self) -> str:
        """zset: tag of each ended task that the archive's database refused → µs at which it was due; emptied by
        watchers every ten minutes, for another attempt."""
        return f"{self.archive}:refused"

    @property
    def archiver(self) -> str:
        """string: id of the watcher that archives; expires with its lease."""
        return f"{self.archive}:archiver"

    @property
    def watchers(self) -> str:
        """zset: announcement of each watcher → µs of its last heartbeat; expires with the newest."""
        return f"{self.prefix}:watchers"

    @property
    def workers(self) -> str:
        """zset: announcement of each worker without remote control → µs of its last heartbeat; expires with the
        newest."""
        return f"{self.prefix}:workers"

    def scope_index(self, scope: Scope) -> str:
        """Prefix of eight zsets, one for each number of a state: tags of the scope's tasks → µs of their status.

        Those of live states empty themselves. Those of terminal states expire `retention` after their newest member, or
        are emptied as tasks are archived.
        """
        return f"{self.prefix}:tasks:{scope}:"

    def owner_index(self, owner: str) -> str:
        """Prefix of a zset for each live state: tags of the tasks of an authenticated owner, with all agents, in named
        tenants → µs of their status; they empty themselves."""
        return f"{self.prefix}:owner:{quoted(owner)}:"

    def context_index(self, scope: Scope, context_id: str) -> str:
        """Prefix of the zsets of one context, like `scope_index`."""
        return f"{self.prefix}:context:{scope}:{quoted(context_id)}:"

    def indexes(self, scope: tuple[str | None, str | None, str | None], context_id: str | None = None) -> str:
        """Pattern for SCAN of the `scope_index` zsets with that agent, tenant and owner, or of the `context_index`
        zsets with a context. None stands for any value."""
        parts = "/".join("*" if part is None else quoted(part) for part in scope)
        rest = f"tasks:{parts}" if context_id is None else f"context:{parts}:{quoted(context_id)}"
        return f"{self._plain_prefix}:{rest}:[1-9]"

    def reply_channel(self, process: str) -> str:
        """channel: notifications of the tasks that this process created and follows, each after its task's channel.

        The process also subscribes to this name followed by ``:<number of these tasks>``, see `reply_channel_loads`.
        """
        return f"{self.prefix}:reply:{process}"

    @property
    def notification_channels(self) -> str:
        """Pattern of the notification channels of all tasks."""
        return f"{self._plain_prefix}:{{*}}:notifications"

    @property
    def reply_channel_loads(self) -> str:
        """Pattern of the channels whose names end in the number of followed tasks of a process."""
        return f"{self._plain_prefix}:reply:*:*"

    @property
    def _plain_prefix(self) -> str:
        """Prefix with escaped wildcards, for patterns of Redis."""
        return "".join(f"\\{char}" if char in "*?[]\\^" else char for char in self.prefix)

    def context_queue(self, scope: Scope, context_id: str) -> str:
        """list: tags of the tasks with open runs in a serialized context, the first of which is not blocked; emptied by
        the ends of runs."""
        return f"{self.prefix}:context_queue:{scope}:{quoted(context_id)}"

    @property
    def sessions(self) -> str:
        """Prefix of the keys of sessions, see `session`."""
        return f"{self.prefix}:session:"

    def session(self, scope: Scope, context_id: str) -> str:
        """hash: session of a context, see scripts/lib for the fields; expires `retention` after its last save, or the
        last start or end of a run."""
        return f"{self.sessions}{scope}:{quoted(context_id)}"

    def message(self, scope: Scope, message_id: str) -> str:
        """hash: digest, task and log position of an accepted message; expires with the window of its idempotency
        key."""
        return f"{self.prefix}:message:{scope}:{quoted(message_id)}"

    def runner(self, runner_id: str) -> str:
        """channel: ``<task_id>.<run>`` of each run that this worker process is asked to cancel."""
        return f"{self.prefix}:runner:{runner_id}"
