"""Every key of the store: its name, its Redis type, and when it goes.

Keys of one task share the hash tag ``{task_id}``. A live task's keys stay; the script that ends the task gives them
`retention` together, or, with an archive, puts it in the list of those that go there, and they stay until its copy is
there. The lists hold live tasks (they empty themselves) or ended ones (they expire with their newest).
``tests/store/test_keys.py`` fails on a key that has no such rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import quote, unquote


def quoted(text: str) -> str:
    """`text` as one part of a key: no colon, brace or space survives."""
    return quote(text, safe="-._~@")


def tag_in(keys: Sequence[str]) -> str:
    """The tag of the task whose ten keys come last: of the one that a script writes."""
    name = keys[-10]
    return name[name.index("{") + 1 : name.rindex("}")]


class TaskKeys(NamedTuple):
    """The keys of one task, in the order in which every script takes them: KEYS[1] to KEYS[10].

    All expire `retention` seconds after its end, or are deleted once it is archived.
    """

    record: str  # hash: owner, agent, state, version, run, request …; see scripts/lib for the fields
    log: str  # list: "<recorded_us> <event>", version n at index n - 1
    history: str  # list: events whose message belongs to the history
    artifacts: str  # list: artifact ids, in order of appearance
    chunks: str  # prefix of one list per artifact: its chunks; the artifact id follows
    metadata: str  # hash: key → serialized google.protobuf.Value
    turns: str  # list: messages that wait for the run before them; gone with the task's end
    wake: str  # channel: the version just written, and " stopped" if the task has paused or ended on the way there
    push: str  # hash: its push-notification configs and their delivery lines; see scripts/lib for the fields
    execution: str  # list: the newest 1,000 steps of its runs, see lifecycle/steps.py


@dataclass(frozen=True, slots=True)
class Scope:
    """Whose task it is: nobody sees a task of another scope.

    `agent` is the name it was registered under, `tenant` and `owner` come from the caller ("" for none).
    """

    agent: str = ""
    tenant: str = ""
    owner: str = ""

    def __str__(self) -> str:
        return "/".join(quoted(part) for part in (self.agent, self.tenant, self.owner))

    @property
    def account(self) -> str:
        """Whose limits hold: ``/<owner>`` for an authenticated owner in all tenants, else ``<tenant>/``."""
        return f"/{quoted(self.owner)}" if self.owner else f"{quoted(self.tenant)}/"

    @classmethod
    def parse(cls, text: str) -> Scope:
        """The scope that `str` wrote."""
        return cls(*(unquote(part) for part in text.split("/")))


@dataclass(frozen=True, slots=True)
class Keys:
    """Names every key of a store with the given prefix."""

    prefix: str = "a2a"

    def task(self, task_id: str) -> TaskKeys:
        """The keys of the task `task_id`."""
        base = f"{self.prefix}:{{{quoted(task_id)}}}"
        return TaskKeys(
            record=f"{base}:task",
            log=f"{base}:log",
            history=f"{base}:history",
            artifacts=f"{base}:artifacts",
            chunks=f"{base}:artifact:",
            metadata=f"{base}:metadata",
            turns=f"{base}:turns",
            wake=f"{base}:notifications",
            push=f"{base}:push",
            execution=f"{base}:execution",
        )

    @property
    def leases(self) -> str:
        """zset: ``<task_id>.<run>`` of each claimed run → the µs its lease ends; emptied by its runs' ends."""
        return f"{self.prefix}:leases"

    @property
    def dispatch(self) -> str:
        """zset: ``<task_id>.<run>`` of each unclaimed run → the µs it is published again; emptied by claims."""
        return f"{self.prefix}:dispatch"

    @property
    def blocked(self) -> str:
        """zset: ``<task_id>.<run>`` of each queued run that stands behind another of its context → the µs since when;
        emptied by that one's end, or its own."""
        return f"{self.dispatch}:blocked"

    def queue(self, agent: str) -> str:
        """zset: tag of each task of the agent whose newest run waits for a worker → the µs since when; kept only while
        `agent_max_queue` is set; emptied by claims and ends."""
        return f"{self.prefix}:queue:{quoted(agent)}"

    @property
    def stored(self) -> str:
        """hash: `Scope.account` → bytes of its tasks, ``*`` → of all; kept only while `store_max_bytes` or
        `owner_max_stored_bytes` is set; emptied as tasks leave the store."""
        return f"{self.prefix}:stored"

    @property
    def stored_expiring(self) -> str:
        """zset: ``<tag> <bytes> <account>`` of each counted task whose keys expire → the µs at which they do;
        emptied by messages that come after it."""
        return f"{self.stored}:expiring"

    def requests(self, scope: Scope) -> str:
        """string: the µs at which the account, for whichever agent, has its whole burst again; expires then."""
        return f"{self.prefix}:requests:{scope.account}"

    @property
    def canvases(self) -> str:
        """zset: ``<task_id>.<run>`` of each run that a canvas ends → the µs it is looked at; emptied by that end."""
        return f"{self.prefix}:canvases"

    @property
    def pauses(self) -> str:
        """zset: tag of each task that waits for its client → the µs that ends, +inf for never; emptied by answers, ends
        and the watcher."""
        return f"{self.prefix}:pauses"

    @property
    def dead_letters(self) -> str:
        """zset: tag of each FAILED task that was lost with its worker and not requeued → the µs its record goes.

        What it takes to run it again is in its record; both expire with `retention`, the list with its newest.
        """
        return f"{self.prefix}:dead_letters"

    @property
    def deliveries(self) -> str:
        """zset: ``<tag of the task> <config id, quoted>`` of each delivery line to which events are owed → the µs it is
        due; emptied by deliverers."""
        return f"{self.prefix}:deliveries"

    def posted(self, owner: str, host: str) -> str:
        """string: the µs at which the owner of the cursor, has all its bytes for posts to the host again; expires
        then."""
        return f"{self.prefix}:byte_bucket:{owner}:{quoted(host)}"

    @property
    def delivery_notifications(self) -> str:
        """channel: rung when a line that nobody had in hand is due at once."""
        return f"{self.deliveries}:notifications"

    @property
    def requested_posts(self) -> str:
        """zset: each line whose owner requested posts → the µs they are due; emptied by watchers."""
        return f"{self.deliveries}:requested"

    @property
    def delivery_outcomes(self) -> str:
        """hash: delivered, failed, given_up → how many posts came to that since there is a store; stays."""
        return f"{self.deliveries}:outcomes"

    def webhooks(self, account: str) -> str:
        """zset: each delivery line of the account → the µs its task's keys go, +inf while it lives; expires with them;
        kept only while `owner_max_webhooks` is set."""
        return f"{self.prefix}:webhooks:{account}"

    @property
    def blobs(self) -> str:
        """zset: tag of each task with parts in the object store → the µs a watcher looks whether it still exists;
        emptied by that."""
        return f"{self.prefix}:blobs"

    @property
    def orphaned_blobs(self) -> str:
        """zset: tag of each task that is gone → the µs its folder in the object store is removed, or tried again;
        emptied by watchers."""
        return f"{self.blobs}:orphaned"

    @property
    def metrics(self) -> str:
        """hash: what all tasks came to, see ``metrics``; stays."""
        return f"{self.prefix}:metrics"

    @property
    def dead_deliveries(self) -> str:
        """zset: each line that was given up → the µs its task's keys go, +inf while it lives; expires with them."""
        return f"{self.prefix}:dead_deliveries"

    @property
    def secrets(self) -> str:
        """hash: fingerprint of each secret that configs or sessions are sealed with → the list of these; emptied by who
        asks which are in use."""
        return f"{self.prefix}:secrets"

    def sealed_with(self, fingerprint: str) -> str:
        """zset: each line whose config is sealed with that secret, and the key of each session that is → the µs when it
        goes, +inf for the lines of live tasks; expires with them."""
        return f"{self.prefix}:sealed:{quoted(fingerprint)}"

    @property
    def installation(self) -> str:
        """hash: what holds for the whole store; stays.

        schema: see ``schema``. archive: "1" where ended tasks go to an archive, ""; border: µs of the newest status
        that went there; adopted: "1" when all that had ended before waits for it too. clock: how many jumps of the
        store's clock were corrected, see ``correct_clock``; clock_set_at: µs of the last one, by the new time.
        """
        return f"{self.prefix}:installation"

    @property
    def archive(self) -> str:
        """zset: tag of each ended task that waits for the archive → the µs it goes there; emptied by the archiver."""
        return f"{self.prefix}:archive"

    @property
    def archive_refused(self) -> str:
        """zset: tag of each ended task that the archive's database does not take → the µs it was to; emptied by
        watchers, every ten minutes: they wait again."""
        return f"{self.archive}:refused"

    @property
    def archiver(self) -> str:
        """string: the watcher that archives; expires when it is not heard of."""
        return f"{self.archive}:archiver"

    @property
    def watchers(self) -> str:
        """zset: what each watcher says of itself → the µs it last did; expires with the last of them."""
        return f"{self.prefix}:watchers"

    @property
    def workers(self) -> str:
        """zset: what each worker without remote control announces → the µs it last did; expires with the last."""
        return f"{self.prefix}:workers"

    def scope_index(self, scope: Scope) -> str:
        """Prefix of eight zsets, one per state: the scope's tasks → µs of their status. The state's number follows.

        Those of live states empty themselves; those of terminal states expire `retention` after their newest member, or
        are emptied as their members go to the archive.
        """
        return f"{self.prefix}:tasks:{scope}:"

    def owner_index(self, owner: str) -> str:
        """Prefix of a zset for each live state: tasks of an authenticated owner, of all agents, in named tenants → µs
        of their status; they empty themselves."""
        return f"{self.prefix}:owner:{quoted(owner)}:"

    def context_index(self, scope: Scope, context_id: str) -> str:
        """As `scope_index`, of one context only."""
        return f"{self.prefix}:context:{scope}:{quoted(context_id)}:"

    def indexes(self, scope: tuple[str | None, str | None, str | None], context_id: str | None = None) -> str:
        """A pattern of Redis' SCAN for the `scope_index` of each scope with that agent, tenant and owner, or for its
        `context_index`, with the states' numbers; None: any."""
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
        """A pattern for the channel `wake` of each task."""
        return f"{self._plain_prefix}:{{*}}:notifications"

    @property
    def reply_channel_loads(self) -> str:
        """Pattern of the channels whose names end in the number of followed tasks of a process."""
        return f"{self._plain_prefix}:reply:*:*"

    @property
    def _plain_prefix(self) -> str:
        """The prefix, which no pattern of Redis' takes for one."""
        return "".join(f"\\{letter}" if letter in "*?[]\\^" else letter for letter in self.prefix)

    def context_queue(self, scope: Scope, context_id: str) -> str:
        """list: tags of the tasks in the context whose runs come one by one, the first has the turn; emptied by the
        ends of their runs."""
        return f"{self.prefix}:context_queue:{scope}:{quoted(context_id)}"

    @property
    def sessions(self) -> str:
        """What the keys of sessions begin with; scope and context follow, as in `session`."""
        return f"{self.prefix}:session:"

    def session(self, scope: Scope, context_id: str) -> str:
        """hash: an agent's own state of a context, see scripts/lib for the fields; expires `retention` after it
        was last saved, or a run of it last began or ended."""
        return f"{self.sessions}{scope}:{quoted(context_id)}"

    def message(self, scope: Scope, message_id: str) -> str:
        """hash: what was accepted under this message id (digest, task, place in its log); expires with its window."""
        return f"{self.prefix}:message:{scope}:{quoted(message_id)}"

    def runner(self, runner_id: str) -> str:
        """channel: ``<task_id>.<run>`` of a run that this worker process shall cancel."""
        return f"{self.prefix}:runner:{runner_id}"
