"""Features: only the folder of a feature, the list of features, tests and docs name the feature."""

from __future__ import annotations

import re

import pytest

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
    "idempotency": r"[Ii]dempotency_?[Ww]indow|Idempotency\b(?! key)|IdempotencyKey|features\.idempotency",
    "questions": (
        r"features\.questions|\b[Rr]eminders?\b(?! poster)|[Rr]emind_?[aA]fter|escalate_to|post_reminders"
        r"|ReminderPoster|reminder_index|QuestionSection|AnswerSection|OpenQuestion|validated_run|\banswer_schema\b|\bask_all\b"
        r"|QuestionMethods|AnswerSequence|replay_questions|question_count"
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
    "waits": r"features[./]waits\b|BegunWait|WaitMethods|SHORT_SLEEP|begin_sleep|begin_wait",
}
"""Pattern of the names of each feature, by its folder."""

USERS = {
    "families": (
        "a2a_celery/features/dead_letters/",  # the task as which a dead letter is requeued uses its called children
        "a2a_celery/features/idempotency/",  # the digest of a message excludes its parent
    ),
    "steps": (  # waits and calls record their results in the journal
        "a2a_celery/features/families/",
        "a2a_celery/features/questions/",
        "a2a_celery/features/waits/",
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
    "a2a_celery/store/scripts/admin/migrate_to_",  # names the fields of older schemas
)
"""Beginnings of the files that may name features."""

REPORTS = {
    f"{PACKAGE}/cli/doctor/checks.py",
    *(f"{PACKAGE}/cli/operator/{name}.py" for name in ("selection", "stats", "top")),
    f"{PACKAGE}/gateway/metrics.py",
    f"{PACKAGE}/gateway/operator/reports.py",
    f"{PACKAGE}/telemetry/names.py",
}
"""Files that show a value of the core to operators under the public names in `PUBLIC_NAMES`."""
PUBLIC_NAMES = {"dead_letters": {"deadLetter", "dead letter", "dead_letter", "DEAD_LETTER"}}
"""Public names of values of the core, by the feature that has the same name. A task that can be resubmitted is a dead
letter for operators."""


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
    assert {name for name in found if found[name] & public} == (REPORTS if public else set())
    assert {name: names - public for name, names in found.items() if names - public} == {}
