"""Redis keys of the store, with their types and lifetimes.

The keys of one task share a hash tag, the percent-encoded id of the task in braces. The text in the braces is called
the task's tag. The keys of a live task do not expire. The script that ends a task sets the task's keys to expire after
the retention period, or queues the task for the archive. The archiver deletes the keys after it has copied the task. A
task is removed from the lists of live tasks when it ends. A list of ended tasks expires with its newest member. Scores
that are times are in µs since 1970. ``tests/store/test_keys.py`` fails for a key without such a rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from ..lifecycle.references import Scope, quote_key_part


def scope_or_any(scope: Scope | None) -> str:
    """Return a scope as scripts receive it: "*" stands for any scope."""
    return "*" if scope is None else str(scope)


def scope_text(scope: Scope) -> str:
    """Return a scope as scripts receive it."""
    return str(scope)


ExactScope = Annotated[Scope, scope_text]
"""Scope as an argument of a script."""

AnyScope = Annotated[Scope | None, scope_or_any]
"""Scope as the argument of a script, or None for any scope."""

Quoted = Annotated[str, quote_key_part]
"""Text that a script receives percent-encoded, as in a key. A script receives the id of a task as the task's tag."""


def tag_in(keys: Sequence[str]) -> str:
    """Return the tag of the task that a script writes. The first twelve of `keys` are the keys of the task."""
    name = keys[0]
    return name[name.index("{") + 1 : name.rindex("}")]


class TaskKeys(NamedTuple):
    """Keys of one task, in the order of the scripts' arguments.

    The keys expire `retention` seconds after the task ends, or are deleted when the task is archived.
    """

    record: str  # hash: owner, agent, state, version, run, request …; see scripts/lib/tasks.lua
    log: str  # list: "<recorded_us> <event>", version n at index n - 1; string for a packed task (lib/packed.lua)
    history: str  # list: events with the messages of the history, or numbers of their log entries
    artifacts: str  # list: artifact ids, in order of appearance
    chunks: str  # prefix of one list per artifact: its chunks; the artifact id follows
    metadata: str  # hash: key → serialized google.protobuf.Value
    turns: str  # list: client messages that arrived during a run; deleted when the task ends
    notifications: str  # channel: the written version, followed by " final" if the state is final
    cursors: str  # hash: cursors of the log, see scripts/lib/cursors.lua
    execution: str  # list: newest 1,000 steps of the task's runs, see lifecycle/execution.py
    journal: str  # hash: journal of the turn, see lifecycle/journal.py; a task that can be resubmitted keeps it
    signals: str  # list: signals that no run has received; deleted like the journal


@dataclass(frozen=True, slots=True)
class Keys:
    """Names of all keys of a store. Each name begins with `prefix`."""

    prefix: str = "a2a"

    def task(self, task_id: str) -> TaskKeys:
        """Return the keys of the task `task_id`."""
        base = f"{self.prefix}:{{{quote_key_part(task_id)}}}"
        return TaskKeys(
            record=f"{base}:task",
            log=f"{base}:log",
            history=f"{base}:history",
            artifacts=f"{base}:artifacts",
            chunks=f"{base}:artifact:",
            metadata=f"{base}:metadata",
            turns=f"{base}:turns",
            notifications=f"{base}:notifications",
            cursors=f"{base}:push",
            execution=f"{base}:execution",
            journal=f"{base}:journal",
            signals=f"{base}:signals",
        )

    def blobs_of(self, tag: str) -> str:
        """Hash that maps the name of each blob that Redis stores for the task with the tag `tag` to its size in bytes.

        See `blob` for names. The hash expires with the task, and is deleted with the task.
        """
        return f"{self.prefix}:{{{tag}}}:blobs"

    def blob(self, tag: str, name: str) -> str:
        """String with the content of a blob of the task with the tag `tag`.

        `name` is the digest of the content, preceded by ``journal-<turn>/`` for a journal entry. The blob of a journal
        is deleted with the journal. All other blobs expire with the task, and are deleted with the task. Before a
        script refers to a blob, the key has an expiry of at most a minute.
        """
        return f"{self.prefix}:{{{tag}}}:blob:{name}"

    @property
    def leases(self) -> str:
        """Sorted set of claimed runs (``<task_id>.<run>``), scored by the time at which the lease ends.

        A run is removed when it ends, or when it is queued, delegated or suspended.
        """
        return f"{self.prefix}:leases"

    @property
    def dispatch(self) -> str:
        """Sorted set of queued runs (``<task_id>.<run>``), scored by the time at which a watcher publishes the run.

        A run is removed when a worker claims it, or when it ends.
        """
        return f"{self.prefix}:dispatch"

    @property
    def blocked(self) -> str:
        """Sorted set of runs (``<task_id>.<run>``) that wait for another run of their context, scored by the start of
        the wait.

        A run is removed when it may begin, or when it ends.
        """
        return f"{self.dispatch}:blocked"

    def queue(self, agent: str) -> str:
        """Sorted set of the tags of the agent's tasks whose newest run is queued, scored by the time at which the run
        was queued.

        The set has the tasks whose records name it. A task is removed when its run is claimed or ends.
        """
        return f"{self.prefix}:queue:{quote_key_part(agent)}"

    @property
    def stored(self) -> str:
        """Hash that maps each `Scope.account` to its stored bytes.

        The hash has the bytes of the tasks whose records name an account. The bytes of expired tasks are subtracted.
        """
        return f"{self.prefix}:stored"

    @property
    def stored_expiring(self) -> str:
        """Sorted set of the tasks in `stored` whose keys expire (``<tag> <bytes> <account>``), scored by the time of
        expiry.

        Expired tasks are removed when a section reads `stored`.
        """
        return f"{self.stored}:expiring"

    def requests(self, scope: Scope) -> str:
        """String with the time, in µs, at which the account's token bucket for requests is full again. The string
        expires at that time.
        """
        return f"{self.prefix}:requests:{scope.account}"

    @property
    def canvases(self) -> str:
        """Sorted set of runs delegated to a canvas (``<task_id>.<run>``), scored by the time at which a watcher polls
        the canvas.

        A run is removed when it ends.
        """
        return f"{self.prefix}:canvases"

    @property
    def suspended(self) -> str:
        """Sorted set of suspended runs (``<task_id>.<run>``), scored by the time at which the run continues, or +inf if
        only a signal continues the run.

        A run is removed when it receives its signal, when it ends, or when a watcher queues it at that time.
        """
        return f"{self.prefix}:suspended"

    @property
    def pauses(self) -> str:
        """Sorted set of the tags of interrupted tasks, scored by the time at which the pause times out, or +inf for
        never.

        A task is removed when its client answers, when it ends, or when the pause times out.
        """
        return f"{self.prefix}:pauses"

    @property
    def resubmittable(self) -> str:
        """Sorted set of the tags of FAILED tasks that can be resubmitted, scored by the end of their retention period.

        The records of the tasks contain the data for a further run. The set expires with its newest member.
        """
        return f"{self.prefix}:dead_letters"

    @property
    def failures(self) -> str:
        """Sorted set of the tags of the newest 200 failed tasks of all owners, scored by the time of their status.

        The record of a listed task may have expired. The set expires with the member that expires last.
        """
        return f"{self.prefix}:failures"

    @property
    def blobs(self) -> str:
        """Sorted set of the tags of tasks with blobs in an object store, scored by the time at which a watcher checks
        that the task exists.

        A watcher removes a task that does not exist.
        """
        return f"{self.prefix}:blobs"

    @property
    def orphaned_blobs(self) -> str:
        """Sorted set of the blob folders to remove, scored by the time at which a watcher removes the folder.

        A member is ``<tag>`` for the folder of a missing task, or ``<tag>/<folder>`` for the folder of a deleted
        journal. A watcher removes the member of a removed folder.
        """
        return f"{self.blobs}:orphaned"

    @property
    def metrics(self) -> str:
        """Hash with the metrics of all tasks, as ``store/admin/metrics.py`` describes them. Permanent."""
        return f"{self.prefix}:metrics"

    def samples(self, series: str) -> str:
        """List of the samples of a series (``<time in µs> <sample>``), newest first; see ``store/admin/samples.py``.

        A watcher trims the list to the newest samples. The list expires if no sample is recorded for its period.
        """
        return f"{self.metrics}:samples:{series}"

    @property
    def secrets(self) -> str:
        """Hash that maps the fingerprint of each secret that seals stored data to the key of the secret's
        `sealed_with` set.

        `secrets_in_use` removes a secret that is not in use.
        """
        return f"{self.prefix}:secrets"

    def sealed_with(self, fingerprint: str) -> str:
        """Sorted set of the cursors and keys whose data the secret seals, scored by the time at which
        they expire, or +inf for a live task.

        The set expires with its newest member.
        """
        return f"{self.prefix}:sealed:{quote_key_part(fingerprint)}"

    @property
    def installation(self) -> str:
        """Hash with the state of the deployment. Permanent.

        Fields:
            schema: Schema of the store, see ``store/admin/schema.py``.
            archive: "1" if ended tasks are archived, or "".
            border: Archive cutoff in µs: the time of the newest archived status, or the time at which the empty store
                received its schema, if that was later. Absent if neither has happened.
            adopted: "1" if tasks that ended before archiving was enabled are archived too.
        """
        return f"{self.prefix}:installation"

    @property
    def archive(self) -> str:
        """Sorted set of the tags of ended tasks to archive, scored by the time at which the task is due.

        The archiver removes archived tasks.
        """
        return f"{self.prefix}:archive"

    @property
    def archive_refused(self) -> str:
        """Sorted set of the tags of ended tasks that the archive's database refused, scored by the time at which the
        task was due.

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
        """Return the common prefix of the eight sorted sets of a scope, one set for each state.

        The number of the state follows the prefix. A set contains the tags of the scope's tasks in the state, scored by
        the time of their status. A task is removed from the set of a live state when its state changes. The set of a
        terminal state expires one retention period after its newest member. With an archive, the set does not expire,
        and each task is removed when it is archived.
        """
        return f"{self.prefix}:tasks:{scope}:"

    @property
    def scopes(self) -> str:
        """Sorted set of the 10,000 scopes with the newest tasks, scored by the time of the scope's newest status.
        Permanent.
        """
        return f"{self.prefix}:scopes"

    def owner_index(self, owner: str) -> str:
        """Return the common prefix of the sorted sets of an authenticated owner, one set for each live state.

        A set contains the tags of the owner's tasks with all agents and in all tenants except "", scored by the time of
        their status. A task is removed from a set when its state changes.
        """
        return f"{self.prefix}:owner:{quote_key_part(owner)}:"

    def context_index(self, scope: Scope, context_id: str) -> str:
        """Return the common prefix of the sorted sets of one context. The sets have the format of the `scope_index`
        sets."""
        return f"{self.prefix}:context:{scope}:{quote_key_part(context_id)}:"

    def indexes(self, scope: tuple[str | None, str | None, str | None], context_id: str | None = None) -> str:
        """Return a pattern for SCAN that matches the names of `scope_index` sets or, with `context_id`, of
        `context_index` sets.

        Args:
            scope: Agent, tenant and owner. None in a field matches any value.
            context_id: Id of the context of the sets, or None for the `scope_index` sets.
        """
        parts = "/".join("*" if part is None else quote_key_part(part) for part in scope)
        rest = f"tasks:{parts}" if context_id is None else f"context:{parts}:{quote_key_part(context_id)}"
        return f"{self._plain_prefix}:{rest}:[1-9]"

    def reply_channel(self, process: str) -> str:
        """Return the channel that carries the notifications of the tasks that `process` created and follows.

        A message is the name of the task's own channel, followed by a space and the notification. The process also
        subscribes to this name followed by ``:<number of these tasks>``; see `reply_channel_loads`.
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
        """List of the tags of tasks with open runs in a serialized context. Only the run of the first task may execute.

        A task is removed when its run ends.
        """
        return f"{self.prefix}:context_queue:{scope}:{quote_key_part(context_id)}"

    @property
    def runners(self) -> str:
        """Prefix of the channels that `runner` returns."""
        return f"{self.prefix}:runner:"

    def runner(self, runner_id: str) -> str:
        """Channel for the runs of a worker process.

        A message is the name of a run to cancel, ``<task_id>.<run>``, or the name of a run followed by `` steer`` or
        `` interrupt`` if a client message arrived for the run.
        """
        return f"{self.runners}{runner_id}"
