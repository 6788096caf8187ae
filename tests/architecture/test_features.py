"""Features: only the folder of a feature, the list of features, tests and docs name the feature."""

from __future__ import annotations

import re

import pytest

from a2a_celery.store.operation import required_libraries

from .source import PACKAGE, ROOT

NAMES = {
    "dead_letters": (
        r"features\.dead_letters|(?<!:)(?<!a2a_)[Dd]ead[ _]?[Ll]etter|DEAD_LETTER|requeue_(?:task|note|page)"
        r"|RequeuedTask|requeued_as|requeuedFrom|REQUEUED_FROM|move_called_children"
    ),
    "families": (
        r"features[./]families\b|\b[Tt]ask_?[Ff]amil(?:y|ies)|read_family|[Cc]hild[ _]?[Tt]asks?\b|is_awaited"
        r"|Child(?:Call|Section|Canceller|Failed|Interrupted|Refused)\b|OrphanedChild|child_canceller|CHILD_SIGNAL"
        r"|name_parent|parent_named|remove_parent|PARENT_TASK_ID|CANCEL_WITH_PARENT|cancel_with_parent|BY_PARENT"
        r"|\bparent_(?:id|arguments)\b|ended_parent|CallMethods|BegunCall|begin_call|AgentCall|agent_call"
        r"|waits_for_itself|WAITS_FOR_ITSELF|\b[Pp]arent (?:task|of the (?:new )?task)|(?:its|their) parents?\b"
        r"|lifecycle[./]parents"
    ),
    "hooks": (
        r"features[./]hooks\b|(?<!Web )\bHooks\b|RunHooks|RunInfo|Hook(?:Methods|Failed|Raised)|HOOK_NAMES"
        r"|HOOKS_TIMEOUT|before_run|after_run|\bon_event\b|on_transition|\bhooks of\b"
    ),
    "idempotency": r"[Ii]dempotency_?[Ww]indow|Idempotency\b(?! key)|IdempotencyKey|features\.idempotency",
    "limits": r"features[./]limits\b|TaskLimits|owner_max_(?:concurrent|stored)|agent_max_queue|owner_bytes",
    "publish_on_accept": (
        r"features[./]publish_on_accept|message_preparer|MessagePreparer|MessagePusher|PushedMessage"
    ),
    "questions": (
        r"features\.questions|\b[Rr]eminders?\b(?! poster)|[Rr]emind_?[aA]fter|escalate_to|post_reminders"
        r"|ReminderPoster|reminder_index|QuestionSection|AnswerSection|OpenQuestion|validated_run|\banswer_schema\b|\bask_all\b"
        r"|QuestionMethods|AnswerSequence|replay_questions|question_count"
    ),
    "retries": (
        r"features[./]retries\b|RetryPolicy|\bRetries\(|RetryMethods|autoretry_for|default_retry_delay"
        r"|retry_(?:backoff|jitter)"
    ),
    "schedules": (
        r"features\.schedules|submit_scheduled|submit_tick|tick_arguments|skipped_?[tT]icks?|TickSection|HandledTick"
        r"|Schedule(?:Task|Methods)|ScheduledMessage|schedule_(?:task|index)|scheduledAt|SCHEDULED_AT"
    ),
    "sessions": (
        r"features\.sessions|ContextSession|SavedSession|SavedSince|SessionSection|SessionState|SessionMethods"
        r"|\bSessions\b|\b(?:open|save|saved|current|renew|reads)_session\b|\bsession_(?:key|prefix)\b"
        r"|\b(?:turn|agent|claim|keys)\.sessions?\b(?!\()|\bsession=True|\"session\"|\bthe sessions? of\b"
    ),
    "steering": (
        r"features[./]steering\b|IncomingMessages|SteeringSection|SteeringMethods|a2a_incoming|poll_messages|open_messages"
        r"|messages_of\(\w*\.?_?run|\.incoming\(|\bdef incoming\b|\bread_messages\("
    ),
    "steps": (
        r"features[./]steps\b|RunJournal|JournalCall|current_journal|DurableStep|[Dd]urable_[Ss]tep|step_results"
        r"|call_arguments|StepMethods|StepError|StepFailed|StepsChanged|steps_changed|current_step_key|\bstep_key\b"
        r"|StepCall|\bUNFINISHED\b"
    ),
    "webhooks": (
        r"(?<!\w)[Ww]ebhooks?\b|WEBHOOK|[Pp]ush_?[Cc]onfigs?\b|PUSH_CONFIGS|ConfigSection|config_section|Deliver(?:er|yCursor|yMetrics)"
        r"|Replayer|(?:read|replay|record|abandon|postpone|delete|save|scan)_(?:delivery|deliveries)|delivery_metrics"
    ),
    "waits": r"features[./]waits\b|BegunWait|WaitMethods|SHORT_SLEEP|begin_sleep|begin_wait",
}
"""Pattern of the names of each feature, by its folder."""

USERS = {
    "families": (
        "a2a_celery/features/dead_letters/",  # the task as which a dead letter is requeued uses its called children
        "a2a_celery/features/idempotency/",  # the digest of a message excludes its parent
    ),
    "retries": (  # the options of durable steps, and the delays of ticks
        "a2a_celery/features/schedules/",
        "a2a_celery/features/steps/",
    ),
    "steps": (  # waits and calls record their results in the journal
        "a2a_celery/features/families/",
        "a2a_celery/features/questions/",
        "a2a_celery/features/waits/",
    ),
    "webhooks": (
        "a2a_celery/crypto/",  # keys that sign posts
        "a2a_celery/features/questions/",  # the last reminder of a question goes to a webhook
        "a2a_celery/push/",  # one post
        "a2a_celery/settings/",
        "a2a_celery/telemetry/log_redaction.py",  # removes the addresses of receivers from the logs of libraries
    ),
}
"""Beginnings of further files that may name a feature, because they use it."""

LISTS = list((ROOT / PACKAGE / "features").glob("*.py"))
"""Modules that list the features."""

WIRING = [*LISTS, ROOT / PACKAGE / "__init__.py"]
"""Modules that list the features, and the public names of the package."""

BESIDE = (
    "a2a_celery/app.py",  # describes the options of agents and of `submit`
    "a2a_celery/client/",  # describes the options of remote agents, whose tasks name their parents
    "a2a_celery/errors.py",  # defines the public errors
    "a2a_celery/lifecycle/answers.py",  # clients and servers share the form and the validation of answers, and metadata
    "a2a_celery/lifecycle/questions.py",
    "a2a_celery/lifecycle/own_metadata.py",
    "a2a_celery/lifecycle/parents.py",
    "a2a_celery/frameworks/",  # adapters call the public methods of a `Turn`
    "a2a_celery/settings/__init__.py",  # declares all settings
    "a2a_celery/store/scripts/admin/migrate_to_",  # names the fields of older schemas
)
"""Beginnings of the files that may name features."""

REPORTS = {
    f"{PACKAGE}/cli/doctor/checks.py",
    *(f"{PACKAGE}/cli/operator/{name}.py" for name in ("stats", "top")),
    f"{PACKAGE}/gateway/metrics.py",
    f"{PACKAGE}/gateway/operator/reports.py",
    f"{PACKAGE}/telemetry/names.py",
}
"""Files that show values to operators under the public names in `PUBLIC_NAMES`."""
PUBLIC_NAMES = {
    "dead_letters": {"deadLetter", "dead letter", "dead_letter", "DEAD_LETTER"},
    "webhooks": {"webhook", "webhooks", "Webhook", "Webhooks", "WEBHOOK"},
}
"""Public names of values in reports, by feature. A task that can be resubmitted is a dead letter for operators. The
numbers of posts to webhooks come from ``features/metrics.py``."""
FURTHER_REPORTS = {
    "dead_letters": {f"{PACKAGE}/cli/operator/selection.py"},
    "webhooks": {
        f"{PACKAGE}/cli/serve/watcher.py",  # help of the command
        f"{PACKAGE}/gateway/health.py",  # lines that a gateway logs when it starts
        f"{PACKAGE}/testing/tester.py",  # documents what a test cannot do
    },
}
"""Further files with the public names of a feature."""


def test_each_feature_has_a_folder_and_names() -> None:
    folders = {path.parent.name for path in (ROOT / PACKAGE / "features").glob("*/__init__.py")}

    wiring = "".join(path.read_text(encoding="utf-8") for path in LISTS)

    imports = set(re.findall(r"^from \.(\w+)[\w.]* import", wiring, re.MULTILINE))
    assert folders == imports - {"feature"} == set(NAMES)


@pytest.mark.parametrize("feature", NAMES)
def test_no_other_code_names_a_feature(feature: str) -> None:
    files = [path for kind in ("*.py", "*.lua") for path in (ROOT / PACKAGE).rglob(kind) if path not in WIRING]
    others = {path.relative_to(ROOT).as_posix(): path for path in files}
    own = (f"{PACKAGE}/features/{feature}/", *USERS.get(feature, ()), *BESIDE)

    found = {
        name: set(re.findall(NAMES[feature], path.read_text(encoding="utf-8")))
        for name, path in others.items()
        if not name.startswith(own)
    }

    public = PUBLIC_NAMES.get(feature, set())
    reports = REPORTS | FURTHER_REPORTS[feature] if public else set()
    assert {name for name in found if found[name] & public} == reports
    assert {name: names - public for name, names in found.items() if names - public} == {}


def test_no_script_of_the_core_requires_a_library_of_a_feature() -> None:
    of_features = {path.stem for path in (ROOT / PACKAGE / "features").glob("*/scripts/lib/*.lua")}
    scripts = (ROOT / PACKAGE / "store" / "scripts").rglob("*.lua")

    assert of_features
    assert {
        path.name: libraries
        for path in scripts
        if (libraries := of_features.intersection(required_libraries(path.read_text(encoding="utf-8"))))
    } == {}
