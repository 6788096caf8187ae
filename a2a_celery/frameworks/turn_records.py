"""Records of a framework in the journal of a turn, from which a later run of the turn continues.

A run that was replaced cannot write to the journal, and each later run of the turn receives the records with its claim.
With `secret_key`, the records are encrypted.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..crypto.sealing import NotSealedHere, sealer_of
from ..errors import SessionError
from ..features.steps.journal import RunJournal


class TurnRecords:
    """Records of one kind, each with a key. Encrypted records are bound to the context of the task.

    Args:
        journal: Journal of the run, or None to store nothing.
        kind: Kind of the journal's entries.
        form: Encoding of the records.
        context_id: Id of the task's context.
    """

    def __init__(self, journal: RunJournal | None, kind: str, form: str, context_id: str) -> None:
        self._journal = journal
        self._kind = kind
        self._form = form
        self._context_id = context_id
        self._sealer = None if journal is None else sealer_of(journal.run.settings.secret_keys)

    def read(self) -> dict[str, bytes]:
        """Read the records that earlier runs of the turn wrote.

        Raises:
            SessionError: The records are encrypted, and the current `secret_key` is missing or cannot decrypt them.
        """
        entries = {} if self._journal is None else self._journal.entries(self._kind)
        return {key: self._open(entry.content, entry.form) for key, entry in entries.items()}

    async def replace(self, contents: Mapping[str, bytes | None]) -> None:
        """Replace records in one write. A content of None removes the record.

        Raises:
            CancelledError: The run is lost.
            StepError: A record or the journal is too large. In this case, nothing is written.
        """
        if self._journal is None:
            return
        sealed_contents = {key: None if content is None else self._seal(content) for key, content in contents.items()}
        form = self._form if self._sealer is None else f"sealed {self._form}"
        await self._journal.replace(self._kind, form, sealed_contents)

    def _seal(self, content: bytes) -> bytes:
        return content if self._sealer is None else self._sealer.seal(content, self._kind, self._context_id)

    def _open(self, content: bytes, form: str) -> bytes:
        if form == self._form:
            return content
        problem = f"the {self._kind}s of context {self._context_id!r} cannot be opened"
        if self._sealer is None:
            raise SessionError(f"{problem}: a2a_secret_key is not set: use the secret that they were saved with")
        try:
            return self._sealer.open(content, self._kind, self._context_id)
        except NotSealedHere as e:
            raise SessionError(f"{problem}: {e}") from e
