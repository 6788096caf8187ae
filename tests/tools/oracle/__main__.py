"""Command line of the oracle."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

from tests.tools.oracle.files import Difference, Reader, Writer, differences
from tests.tools.oracle.outcomes import script_names, unreached
from tests.tools.oracle.recorded_store import Outcomes
from tests.tools.oracle.recorder import FEATURES
from tests.tools.oracle.sequences import Scripts, record, recordings, running_store, uses

SEEDS = 200
SEQUENCES = 100
"""Number of sequences of a seed."""

SHOWN = 10
"""Maximum number of differences that `compare` shows."""

SHOWN_CHARACTERS = 2000


def write(arguments: argparse.Namespace) -> int:
    """Write the sequences of this implementation to a file."""
    writer = Writer(arguments.file)
    for seed, sequences in recordings(range(arguments.seeds), arguments.sequences, arguments.processes):
        writer.add(seed, [sequence.lines for sequence in sequences])
    writer.close()
    return 0


def compare(arguments: argparse.Namespace) -> int:
    """Compare the sequences of this implementation with those that a file has. Return 1 if sequences differ."""
    recorded, different, compared = Reader(arguments.file), list[Difference](), 0
    seeds = [seed for seed in range(arguments.seeds) if seed in recorded.digests]
    count = min(arguments.sequences, max(map(len, recorded.digests.values())))
    for seed, sequences in recordings(seeds, count, arguments.processes):
        different += differences(recorded, seed, [sequence.lines for sequence in sequences], arguments.without)
        compared += sum(
            not any(uses(seed, number, feature) for feature in arguments.without) for number in range(len(sequences))
        )
    print(f"{len(different)} of {compared} sequences differ")
    for difference in different[:SHOWN]:
        print(f"\n{difference.seed} {difference.sequence} {difference.move}")
        print(f"- {difference.before[:SHOWN_CHARACTERS]}\n+ {difference.after[:SHOWN_CHARACTERS]}")
    return 1 if different else 0


def show(seed: int, sequence: int) -> int:
    """Print the lines of a sequence."""
    with running_store() as url, Scripts():
        print("\n".join(record(url, seed, sequence).lines))
    return 0


def reached(arguments: argparse.Namespace) -> int:
    """Print the calls of each script by outcome. Return 1 if an outcome is not reached."""
    total: Outcomes = Counter()
    for _, sequences in recordings(range(arguments.seeds), arguments.sequences, arguments.processes):
        for sequence in sequences:
            total.update(sequence.outcomes)
    for name in script_names():
        outcomes = {outcome: count for (script, outcome), count in total.items() if script == name}
        print(
            f"{name} {sum(outcomes.values())}", *(f"{outcome}={n}" for outcome, n in sorted(outcomes.items())), sep="  "
        )
    problems = unreached(total)
    print(*problems, sep="\n")
    return 1 if problems else 0


def cover(arguments: argparse.Namespace) -> int:
    """Print few sequences that together have all outcomes of all sequences."""
    outcomes = {
        (seed, number): set(sequence.outcomes)
        for seed, sequences in recordings(range(arguments.seeds), arguments.sequences, arguments.processes)
        for number, sequence in enumerate(sequences)
    }
    missing = set().union(*outcomes.values())
    while missing:
        best = max(outcomes, key=lambda number: len(outcomes[number] & missing))
        missing -= outcomes[best]
        print(best)
    return 0


def main() -> int:
    """Run the command line, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.oracle", description="Oracle for the store.")
    commands = parser.add_subparsers(required=True, dest="command")
    for name in ("record", "compare", "reached", "cover"):
        command = commands.add_parser(name)
        if name in ("record", "compare"):
            command.add_argument("file", type=Path)
        command.add_argument("--seeds", type=int, default=SEEDS)
        command.add_argument("--sequences", type=int, default=SEQUENCES, help="sequences of each seed")
        command.add_argument("--processes", type=int, default=2)
        if name == "compare":
            command.add_argument(
                "--without",
                action="append",
                default=[],
                metavar="FEATURE",
                help=f"leave out the sequences that use a feature: {', '.join(FEATURES)}",
            )
    command = commands.add_parser("show")
    command.add_argument("seed", type=int)
    command.add_argument("sequence", type=int)
    arguments = parser.parse_args()
    if arguments.command == "show":
        return show(arguments.seed, arguments.sequence)
    run = {"record": write, "compare": compare, "reached": reached, "cover": cover}[arguments.command]
    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
