"""Files of recorded sequences: a zip archive with the lines of each seed's sequences, and a digest of each sequence."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from zipfile import ZIP_BZIP2, ZipFile

from tests.tools.oracle.sequences import uses
from tests.tools.oracle.transcript import digest

END = "\n\f\n"
"""Text between two sequences."""

LEVEL = 9


class Writer:
    """Zip archive to which the sequences of seeds are added."""

    def __init__(self, path: Path) -> None:
        self._archive = ZipFile(path, "w", ZIP_BZIP2, compresslevel=LEVEL)
        self._digests: dict[int, list[str]] = {}

    def add(self, seed: int, sequences: Sequence[list[str]]) -> None:
        """Add the sequences of a seed."""
        self._archive.writestr(f"{seed}.txt", END.join(map("\n".join, sequences)))
        self._digests[seed] = list(map(digest, sequences))

    def close(self) -> None:
        """Add the digests, and close the archive."""
        self._archive.writestr("digests.json", json.dumps(self._digests))
        self._archive.close()


class Reader:
    """Zip archive of recorded sequences."""

    def __init__(self, path: Path) -> None:
        self._archive = ZipFile(path)
        texts: dict[str, list[str]] = json.loads(self._archive.read("digests.json"))
        self.digests = {int(seed): digests for seed, digests in texts.items()}

    def sequences(self, seed: int) -> list[list[str]]:
        """Return the recorded sequences of a seed."""
        return [text.split("\n") for text in self._archive.read(f"{seed}.txt").decode().split(END)]


@dataclass(frozen=True)
class Difference:
    """First difference of two runs of a sequence.

    Attributes:
        move: Line that names the move.
        before: Recorded line, or "" if the recorded sequence is shorter.
        after: Line of this implementation, or "" if its sequence is shorter.
    """

    seed: int
    sequence: int
    move: str
    before: str
    after: str


def differences(
    recorded: Reader, seed: int, sequences: Sequence[list[str]], without: Iterable[str]
) -> Iterator[Difference]:
    """Yield the differences of the sequences of a seed, except the sequences that use a feature of `without`."""
    features = list(without)
    before = None
    for number, (lines, expected) in enumerate(zip(sequences, recorded.digests[seed], strict=False)):
        if digest(lines) != expected and not any(uses(seed, number, feature) for feature in features):
            before = before or recorded.sequences(seed)
            yield first_difference(seed, number, before[number], lines)


def first_difference(seed: int, sequence: int, before: Sequence[str], after: Sequence[str]) -> Difference:
    """Return the first different lines of two runs of a sequence."""
    move = ""
    for old, new in zip_longest(before, after, fillvalue=""):
        if old != new:
            return Difference(seed, sequence, move, old, new)
        if old.startswith("--- "):
            move = old
    raise ValueError(f"sequence {seed}/{sequence} does not differ")
