"""Redis keys of the store, with their types and lifetimes.

The keys of one task share the hash tag ``{task_id}``, called the task's tag. The keys of a live task do not expire. The
script that ends a task sets its keys to expire after `retention`, or queues the task for the archive, which deletes the
keys after it has copied the task. A list of live tasks drops a task when the task ends. A list of ended tasks expires
with its newest member. Scores that are times are in µs.
``tests/store/test_keys.py`` fails for a key without such a rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import quote, unquote


def quoted(text: str) -> str:
    """Percent-encode `text` for use in a key. The result contains no colon, brace or space."""
    return quote(text, safe="-._~@")


def tag_in(keys: Sequence[str]) -> str:
    """Return the tag of the task that a script writes. The twelve keys of the task are the last of `keys`."""
    name = keys[-12]
    return name[name.index("{") + 1 : name.rindex("}")]


class TaskKeys(NamedTuple):
    """Keys of one task, in the order in which scripts receive them.

    The keys expire `retention` seconds after the task ends, or are deleted when the task is archived.
    """

    record: str  # hash: owner, agent, state, version, run, request …; see scripts/lib for the fields
    log: str  # list: "<recorded_us> <event>", version n at index n - 1
    history: str  # list: events whose message belongs to the history
    artifacts: str  # list: artifact ids, in order of appearance
    chunks: str  # prefix of one list per artifact: its chunks; the artifact id follows
    metadata: str  # hash: key → serialized google.protobuf.Value
    turns: str  # list: messages that wait for the end of a run; deleted at the task's end
    notifications: str  # channel: the written version, followed by " final" if the state is final
    push: str  # hash: push-notification configs with their delivery cursors; see scripts/lib for the fields
    execution: str  # list: newest 1,000 steps of the task's runs, see lifecycle/execution.py
    journal: (
        str  # hash: journal of the turn, see lifecycle/journal.py; deleted when the task ends without a dead letter
    )
    signals: str  # list: signals that no run has received; deleted when the task ends without a dead letter


@dataclass(frozen=True, slots=True)
class Scope:
    """Agent, tenant and owner of a task. A task is invisible in all other scopes.

    `agent` is the registered name of the agent. `tenant` and `owner` come from the caller, and are "" if it has none.
    """

    agent: str = ""
    tenant: str = ""
    owner: str = ""

    def __str__(self) -> str:
        return "/".join(quoted(part) for part in (self.agent, self.tenant, self.owner))

    @property
    def account(self) -> str:
        """Account whose limits apply.

        An authenticated owner has one account in all tenants, ``/<owner>``. Other callers share ``<tenant>/``.
        """
        return f"/{quoted(self.owner)}" if self.owner else f"{quoted(self.tenant)}/"

    @classmethod
    def parse(cls, text: str) -> Scope:
        """Parse the output of `str`."""
        return cls(*(unquote(part) for part in text.split("/")))


@dataclass(frozen=True, slots=True)
class Keys:
    """Names of all keys of a store. Each name begins with `prefix`."""

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
        """Sorted set of claimed runs (``<task_id>.<run>``), scored by the time at which the lease ends.

        The end of a run removes it.
        """
        return f"{self.prefix}:leases"

    @property
    def dispatch(self) -> str:
        """Sorted set of queued runs (``<task_id>.<run>``), scored by the time at which a watcher publishes the run.

        The claim of a run removes it.
        """
        return f"{self.prefix}:dispatch"

    @property
    def blocked(self) -> str:
        """Sorted set of runs (``<task_id>.<run>``) that wait for another run of their context, scored by the time since
        which they wait.

        A run is removed when it may begin, or when it ends.
        """
        return f"{self.dispatch}:blocked"

    def queue(self, agent: str) -> str:
        """Sorted set of the agent's tasks (tags) whose newest run is queued, scored by the time at which it was queued.

        The set exists only if `agent_max_queue` is set. A claim or the end of a run removes the task.
        """
        return f"{self.prefix}:queue:{quoted(agent)}"

    @property
    def stored(self) -> str:
        """Hash of the stored bytes of each `Scope.account`, and of all tasks in the field ``*``.

        The hash exists only if `store_max_bytes` or `owner_max_stored_bytes` is set. The bytes of expired tasks are
        subtracted.
        """
        return f"{self.prefix}:stored"

    @property
    def stored_expiring(self) -> str:
        """Sorted set of the tasks in `stored` whose keys expire (``<tag> <bytes> <account>``), scored by the time of
        the expiry.

        A later message removes expired tasks.
        """
        return f"{self.stored}:expiring"

    def requests(self, scope: Scope) -> str:
        """String with the time, in µs, at which the account's request bucket is full again. Expires at that time."""
        return f"{self.prefix}:requests:{scope.account}"

    @property
    def canvases(self) -> str:
        """Sorted set of runs delegated to a canvas (``<task_id>.<run>``), scored by the time at which a watcher polls
        the canvas.

        The end of the run removes it.
        """
        return f"{self.prefix}:canvases"

    @property
    def suspended(self) -> str:
        """Sorted set of suspended runs (``<task_id>.<run>``), scored by the time at which the run continues, or +inf if
        only a signal continues the run.

        A signal, the end of the run, or a watcher at that time removes the run.
        """
        return f"{self.prefix}:suspended"

    @property
    def pauses(self) -> str:
        """Sorted set of interrupted tasks (tags), scored by the time at which the pause times out, or +inf for never.

        An answer, the end of the task or the timeout removes the task.
        """
        return f"{self.prefix}:pauses"

    @property
    def reminders(self) -> str:
        """Sorted set of the tasks (tags) whose open question has a reminder, scored by the µs of the next reminder.

        It does not expire.
        """
        return f"{self.prefix}:reminders"

    @property
    def ended_parents(self) -> str:
        """Sorted set of tasks that ended without a result (tags), scored by the time at which a watcher cancels
        their children.

        A watcher removes a task whose children have ended.
        """
        return f"{self.prefix}:ended_parents"

    @property
    def ended_parent_notifications(self) -> str:
        """Channel with a message for each task that is added to `ended_parents`."""
        return f"{self.ended_parents}:notifications"

    @property
    def dead_letters(self) -> str:
        """Sorted set of dead letters (tags) that were not requeued, scored by the time at which the record expires.

        The record of the task contains the request. The set expires with its newest member.
        """
        return f"{self.prefix}:dead_letters"

    @property
    def deliveries(self) -> str:
        """Sorted set of delivery cursors with undelivered events (``<tag of the task> <quoted config id>``), scored by
        the time at which the cursor is due.

        A deliverer removes a cursor whose events are all delivered.
        """
        return f"{self.prefix}:deliveries"

    def posted(self, owner: str, host: str) -> str:
        """String with the time, in µs, at which the owner's byte bucket for posts to the host is full again. Expires at
        that time."""
        return f"{self.prefix}:byte_bucket:{owner}:{quoted(host)}"

    @property
    def delivery_notifications(self) -> str:
        """Channel with a message for each delivery cursor that becomes due immediately."""
        return f"{self.deliveries}:notifications"

    @property
    def requested_posts(self) -> str:
        """Sorted set of delivery cursors with requested posts, scored by the time at which the posts are due.

        A watcher removes a cursor whose posts are all sent.
        """
        return f"{self.deliveries}:requested"

    @property
    def delivery_outcomes(self) -> str:
        """Hash with the number of posts by outcome: delivered, failed and given_up. Permanent."""
        return f"{self.deliveries}:outcomes"

    def webhooks(self, account: str) -> str:
        """Sorted set of the account's delivery cursors, scored by the time at which the task expires, or +inf for a
        live task.

        The set exists only if `owner_max_webhooks` is set, and expires with its newest member.
        """
        return f"{self.prefix}:webhooks:{account}"

    @property
    def blobs(self) -> str:
        """Sorted set of tasks with blobs (tags), scored by the time at which a watcher checks that the task exists.

        A watcher removes a task that does not exist.
        """
        return f"{self.prefix}:blobs"

    @property
    def orphaned_blobs(self) -> str:
        """Sorted set of missing tasks with blobs (tags) and of folders of deleted journals (tag, slash, folder), scored
        by the time at which a watcher removes the folder.

        A watcher removes the member of a removed folder.
        """
        return f"{self.blobs}:orphaned"

    @property
    def metrics(self) -> str:
        """Hash with the metrics of all tasks, as ``store/admin/metrics.py`` describes them. Permanent."""
        return f"{self.prefix}:metrics"

    @property
    def dead_deliveries(self) -> str:
        """Sorted set of dead delivery cursors, scored by the time at which the task expires, or +inf for a live task.

        The set expires with its newest member.
        """
        return f"{self.prefix}:dead_deliveries"

    @property
    def secrets(self) -> str:
        """Hash of the secrets that seal configs or sessions: fingerprint of the secret, and the key of its
        `sealed_with` set.

        `secrets_in_use` removes a secret that is not in use.
        """
        return f"{self.prefix}:secrets"

    def sealed_with(self, fingerprint: str) -> str:
        """Sorted set of the delivery cursors and session keys that the secret seals, scored by the time at which they
        expire, or +inf for a live task.

        The set expires with its newest member.
        """
        return f"{self.prefix}:sealed:{quoted(fingerprint)}"

    @property
    def installation(self) -> str:
        """Hash with the state of the deployment. Permanent.

        Fields:
            schema: schema of the store, see ``store/admin/schema.py``.
            archive: "1" if ended tasks are archived, or "".
            border: time of the newest archived status, in µs.
            adopted: "1" if tasks that ended before archiving was enabled are archived too.
            clock: number of corrected jumps of the store's clock, see ``correct_clock``.
            clock_set_at: time of the last jump by the corrected clock, in µs.
        """
        return f"{self.prefix}:installation"

    @property
    def archive(self) -> str:
        """Sorted set of ended tasks to archive (tags), scored by the time at which the task is due.

        The archiver removes archived tasks.
        """
        return f"{self.prefix}:archive"

    @property
    def archive_refused(self) -> str:
        """Sorted set of ended tasks (tags) that the archive's database refused, scored by the time at which the task
        was due.

        Every ten minutes, a watcher moves the tasks back to `archive` for another attempt.
        """
        return f"{self.archive}:refused"

    @property
    def archiver(self) -> str:
        """String with the id of the watcher that archives. Expires with the lease of that watcher."""
        return f"{self.archive}:archiver"

    @property
    def watchers(self) -> str:
        """Sorted set of the announcements of watchers, scored by the time of the last heartbeat.

        The set expires with its newest member.
        """
        return f"{self.prefix}:watchers"

    @property
    def workers(self) -> str:
        """Sorted set of the announcements of workers without remote control, scored by the time of the last heartbeat.

        The set expires with its newest member.
        """
        return f"{self.prefix}:workers"

    @property
    def version_workers(self) -> str:
        """Sorted set of the announcements of workers that consume version queues, scored by the time of the last
        heartbeat.

        The set expires with its newest member.
        """
        return f"{self.prefix}:version_workers"

    def scope_index(self, scope: Scope) -> str:
        """Return the prefix of eight sorted sets, one for each state: the scope's tasks (tags), scored by the time of
        their status.

        The number of the state follows the prefix. A task leaves the set of a live state when its state changes. The
        set of a terminal state expires `retention` after its newest member, or loses its tasks to the archive.
        """
        return f"{self.prefix}:tasks:{scope}:"

    def owner_index(self, owner: str) -> str:
        """Return the prefix of a sorted set for each live state: the tasks (tags) of an authenticated owner in all
        named tenants and with all agents, scored by the time of their status.

        A task leaves a set when its state changes.
        """
        return f"{self.prefix}:owner:{quoted(owner)}:"

    def context_index(self, scope: Scope, context_id: str) -> str:
        """Return the prefix of the sorted sets of one context. They have the form of `scope_index`."""
        return f"{self.prefix}:context:{scope}:{quoted(context_id)}:"

    def indexes(self, scope: tuple[str | None, str | None, str | None], context_id: str | None = None) -> str:
        """Return a SCAN pattern of the `scope_index` sets of an agent, tenant and owner, or of the `context_index` sets
        of a context.

        A None in `scope` matches any value.
        """
        parts = "/".join("*" if part is None else quoted(part) for part in scope)
        rest = f"tasks:{parts}" if context_id is None else f"context:{parts}:{quoted(context_id)}"
        return f"{self._plain_prefix}:{rest}:[1-9]"

    def reply_channel(self, process: str) -> str:
        """Return the channel with the notifications of the tasks that `process` created and follows.

        Each notification follows the name of the task's own channel. The process also subscribes to this name followed
        by ``:<number of these tasks>``, see `reply_channel_loads`.
        """
        return f"{self.prefix}:reply:{process}"

    @property
    def notification_channels(self) -> str:
        """Pattern that matches the notification channels of all tasks."""
        return f"{self._plain_prefix}:{{*}}:notifications"

    @property
    def reply_channel_loads(self) -> str:
        """Pattern that matches the channels whose names end with the number of tasks that a process follows."""
        return f"{self._plain_prefix}:reply:*:*"

    @property
    def _plain_prefix(self) -> str:
        """Prefix with its wildcards escaped, for Redis patterns."""
        return "".join(f"\\{char}" if char in "*?[]\\^" else char for char in self.prefix)

    def context_queue(self, scope: Scope, context_id: str) -> str:
        """List of the tasks (tags) with open runs in a serialized context. Only the run of the first task may execute.

        The end of a run removes the task.
        """
        return f"{self.prefix}:context_queue:{scope}:{quoted(context_id)}"

    @property
    def sessions(self) -> str:
        """Prefix of the keys that `session` returns."""
        return f"{self.prefix}:session:"

    def session(self, scope: Scope, context_id: str) -> str:
        """Hash with the session of a context, see ``scripts/lib/sessions.lua`` for its fields.

        The hash expires `retention` after it was saved, or after a run of the context began or ended.
        """
        return f"{self.sessions}{scope}:{quoted(context_id)}"

    def message(self, scope: Scope, message_id: str) -> str:
        """Hash with the digest, task and log position of an accepted message. Expires with the idempotency window."""
        return f"{self.prefix}:message:{scope}:{quoted(message_id)}"

    def runner(self, runner_id: str) -> str:
        """Channel with the name of each run (``<task_id>.<run>``) that the worker process must cancel."""
        return f"{self.prefix}:runner:{runner_id}"
