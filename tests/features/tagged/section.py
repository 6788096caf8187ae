"""Tags of tasks in the store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from a2a_celery.lifecycle.references import quote_key_part
from a2a_celery.lifecycle.refusals import Reason, Refusal
from a2a_celery.store import Keys
from a2a_celery.store.verbs import section


def tag_index(keys: Keys, tag: str) -> str:
    """Return the common prefix of the sorted sets of the tasks with a tag."""
    return f"{keys.prefix}:tag:{quote_key_part(tag)}:"


@section(Path(__file__).with_suffix(".lua"))
class Tag(NamedTuple):
    """Section of ``create_task`` and ``continue_task``."""

    tag: str
    index_prefix: str

    def parse(self, task_id: str, reply: Sequence[bytes]) -> Refusal | None:
        """Parse the reply of the section's ``check``, or return None for any other reply."""
        if reply[0] != b"forbidden":
            return None
        return Refusal(Reason.FEATURE, task_id, {"text": f"no task may have the tag {self.tag!r}"})
