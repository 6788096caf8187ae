"""Text of a turn, in pieces, as its events arrive."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from a2a.types import Artifact, Message, Part, StreamResponse, Task, TaskArtifactUpdateEvent

from ..lifecycle import EventKind, kind_of
from .event_parser import parse_event
from .result import Result


class TextPiece(str):
    """Piece of the text of a turn.

    Attributes:
        artifact_id: Id of the artifact that contains the text, or "" for the text of a message.
        replaces: True if the text replaces all earlier text of the artifact, which the agent has withdrawn.
    """

    artifact_id: str
    replaces: bool

    def __new__(cls, text: str, artifact_id: str = "", *, replaces: bool = False) -> TextPiece:
        piece = super().__new__(cls, text)
        piece.artifact_id, piece.replaces = artifact_id, replaces
        return piece


class TextStream:
    """Converter of the events of one turn to new pieces of text. A chunk takes constant time.

    Args:
        earlier: Result of the task before the turn, whose text is not new.
    """

    def __init__(self, earlier: Result) -> None:
        self._chunks = {artifact.artifact_id: [_text_of(artifact.parts)] for artifact in earlier.artifacts}
        self._yielded: set[str] = set()
        self.is_empty = True
        """True before the first piece."""

    def pieces(self, event: StreamResponse) -> Iterator[TextPiece]:
        """Yield the text that `event` adds."""
        match parse_event(event):
            case TaskArtifactUpdateEvent(artifact=artifact) as update:
                if update.append:
                    yield from self._piece(artifact.artifact_id, _text_of(artifact.parts))
                else:
                    if artifact.artifact_id not in self._yielded:  # replaces the artifact of an earlier turn
                        self._chunks.pop(artifact.artifact_id, None)
                    yield from self._whole(artifact)
            case Task() as task:
                for artifact in task.artifacts:
                    yield from self._whole(artifact)
            case Message() as message if kind_of(message) is EventKind.AGENT_MESSAGE:
                yield from self.message_pieces(Result(message))

    def message_pieces(self, result: Result) -> Iterator[TextPiece]:
        """Yield the text of the message in `result`."""
        yield from self._piece("", result.message_text)

    def _whole(self, artifact: Artifact) -> Iterator[TextPiece]:
        """Yield the difference between the text of `artifact` and its text so far."""
        text, earlier_text = _text_of(artifact.parts), "".join(self._chunks.get(artifact.artifact_id, ()))
        if text.startswith(earlier_text):
            yield from self._piece(artifact.artifact_id, text[len(earlier_text) :])
            return
        is_replacement = artifact.artifact_id in self._yielded
        self._chunks[artifact.artifact_id] = []
        yield from self._piece(artifact.artifact_id, text, replaces=is_replacement)

    def _piece(self, artifact_id: str, text: str, *, replaces: bool = False) -> Iterator[TextPiece]:
        self._chunks.setdefault(artifact_id, []).append(text)
        if not text and not replaces:
            return
        is_separated = not self.is_empty and artifact_id not in self._yielded
        self._yielded.add(artifact_id)
        self.is_empty = False
        yield TextPiece(f"\n{text}" if is_separated else text, artifact_id, replaces=replaces)


def _text_of(parts: Iterable[Part]) -> str:
    return "".join(part.text for part in parts)
