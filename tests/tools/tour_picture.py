"""Record the second step of the demo's tour as the animated picture docs/images/tour.svg:
python -m tests.tools.tour_picture.

The demo runs, and the commands of the tour are executed. All texts in the picture are their output.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from html import escape
from pathlib import Path
from time import monotonic
from typing import NamedTuple
from xml.etree import ElementTree

from tests.support import ROOT
from tests.support.processes.dev import Dev
from tests.support.waiting import eventually

IMAGE = ROOT / "docs" / "images" / "tour.svg"
PORT = "8000"
STEP = 2
"""Number of the recorded step of the tour."""

KILLED_AT = "read …"
"""Text of the agent after which the worker is killed."""

WIDTH, LINE, TOP, LEFT = 840, 21, 58, 20
PAUSE = 1.5
"""Seconds between the first lines of the picture."""

LONGEST = 2.5
"""Maximum number of seconds between two lines. Longer times, such as the start of the client, are shortened."""

LAST = 6.0
"""Seconds for which the complete picture is shown before it starts again."""

COLOURS = {"command": "#f8fafc", "note": "#94a3b8", "output": "#cbd5e1", "lost": "#fca5a5", "recorded": "#86efac"}
"""Colours of the lines by class. The background of the picture is opaque, so that the colours do not depend on the
page's colour scheme."""


class Line(NamedTuple):
    """Line of the output of a command."""

    seconds: float
    text: str


def split_kill_command(command: str) -> tuple[str, str]:
    """Split a suggested command into the command that kills a process, without its condition, and the call."""
    match = re.fullmatch(r"rm -f \S+; \(until .*; done; (kill .*)\) & (.*) \| tee \S+", command)
    assert match, command
    return match[1], match[2]


def lose_worker(demo: Dev) -> list[Line]:
    """Follow the tour's second step: call the agent, and kill the worker after `KILLED_AT`. Return the output."""
    kill, call = split_kill_command(demo.command(STEP))
    began, lines = monotonic(), list[Line]()
    with subprocess.Popen(["bash", "-c", call], stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        for text in client.stdout:
            lines.append(Line(monotonic() - began, text.rstrip("\n")))
            if KILLED_AT in text and sum(KILLED_AT in line.text for line in lines) == 1:
                subprocess.run(["bash", "-c", kill], check=True)
    return lines


def demo_lines(demo: Dev) -> list[str]:
    """Return the lines of the demo's output that the picture shows: the tour's step, and the loss of the worker."""
    lines = demo.output().splitlines()
    step = next(line for line in lines if line.startswith(f"# {STEP}. "))
    lost, restarted = (next(line for line in lines if text in line) for text in ("the worker was killed", "is ready"))
    return [step, lost, restarted]


def calls(demo: Dev) -> list[str]:
    """Return the commands that the picture shows: the call of the agent, and the command that kills the worker."""
    kill, call = split_kill_command(demo.command(STEP))
    return ["a2a-celery demo", f"a2a-celery {call.partition('a2a-celery ')[2]}", kill]


def general(texts: Iterable[str]) -> set[str]:
    """Return `texts` without ids, paths, ports and numbers of processes, which differ between two runs."""
    replacements = (
        (r"[0-9a-f]{8}-[0-9a-f-]{27}", "<id>"),
        (r"/\S+/worker", "<folder>/worker"),
        (r"\d+(\.\d+)*", "<n>"),
    )
    general_texts = set()
    for text in texts:
        for pattern, replacement in replacements:
            text = re.sub(pattern, replacement, text)  # noqa: PLW2901
        general_texts.add(text)
    return general_texts


def recorded_texts() -> list[str]:
    """Return the texts of the picture, without the prompts."""
    root = ElementTree.parse(IMAGE).getroot()
    return ["".join(text.itertext()).removeprefix("$ ") for text in root.iter("{http://www.w3.org/2000/svg}text")]


def picture(demo: list[str], commands: list[str], lines: list[Line]) -> str:
    """Return the picture of a recorded run.

    Args:
        demo: Lines of `demo_lines`.
        commands: Commands of `calls`.
        lines: Output of the call.
    """
    step, lost, restarted = demo
    start, call, kill = commands
    first = 3 * PAUSE - lines[0].seconds
    killed_at = next(line.seconds for line in lines if KILLED_AT in line.text)
    shown = [
        (0.0, "command", f"$ {start}"),
        (PAUSE, "note", step),
        (2 * PAUSE, "command", f"$ {call}"),
    ]
    for line in lines:
        is_recorded = "search: process" in line.text
        shown.append((first + line.seconds, "recorded" if is_recorded else "output", line.text))
        if line.seconds == killed_at:
            at = first + killed_at
            shown += [(at + 0.4, "lost", f"$ {kill}"), (at + 0.6, "lost", lost)]
    resumed = next(number for number, (_, _, text) in enumerate(shown) if text == lost) + 1
    shown.insert(resumed, (shown[resumed][0], "note", restarted))
    return _svg(shown)


def _svg(shown: list[tuple[float, str, str]]) -> str:
    shown = list(_shortened(shown))
    height = TOP + LINE * len(shown)
    duration = shown[-1][0] + LAST
    colours = "".join(f".{name}{{fill:{colour}}}" for name, colour in COLOURS.items())
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
            'aria-labelledby="title description">',
            '<title id="title">A worker is killed, and another worker continues its task</title>',
            '<desc id="description">Terminal with the second step of the tour of a2a-celery demo. The agent report has '
            "finished the step search when its worker is killed. Another worker continues with the step read. The "
            "result contains the recorded step of the lost worker.</desc>",
            "<style>",
            "text{font:13.5px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;white-space:pre}",
            f"{colours}",
            f"text{{animation:{duration:.1f}s step-end infinite}}",
            *_animations(shown, duration),
            "@media (prefers-reduced-motion:reduce){text{animation:none!important}}",
            "</style>",
            f'<rect width="{WIDTH}" height="{height}" rx="10" fill="#0f172a"/>',
            *(f'<circle cx="{22 + 18 * number}" cy="20" r="5.5" fill="#475569"/>' for number in range(3)),
            *(
                f'<text class="{name}" id="l{number}" x="{LEFT}" y="{TOP + LINE * number}">{escape(text)}</text>'
                for number, (_, name, text) in enumerate(shown)
            ),
            "</svg>\n",
        ]
    )


def _shortened(shown: list[tuple[float, str, str]]) -> Iterator[tuple[float, str, str]]:
    at = previous = 0.0
    for seconds, name, text in shown:
        at += min(seconds - previous, LONGEST)
        previous = seconds
        yield at, name, text


def _animations(shown: list[tuple[float, str, str]], duration: float) -> Iterator[str]:
    for number, (seconds, _, _) in enumerate(shown):
        if seconds > 0:
            share = f"{100 * seconds / duration:.2f}%"
            yield f"#l{number}{{animation-name:k{number}}}@keyframes k{number}{{0%{{opacity:0}}{share}{{opacity:1}}}}"


def main() -> None:
    """Run the demo, follow the step, and write the picture."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        demo = Dev(["a2a-celery", "demo", "--port", PORT], Path(folder), Path(folder) / "demo.log")
        try:
            demo.wait_until_ready()
            lines = lose_worker(demo)
            eventually(lambda: "the worker is ready" in demo.output(), what="the demo has replaced the worker")
            IMAGE.write_text(picture(demo_lines(demo), calls(demo), lines))
        finally:
            demo.end()


if __name__ == "__main__":
    main()
