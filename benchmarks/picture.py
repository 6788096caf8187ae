"""SVG of the curves, with a panel for each result that has curves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from .results import Result

WIDTH, HEIGHT = 620, 320
LEFT, RIGHT, TOP, BOTTOM = 70, 110, 50, 50
LINE = 14
"""Height of a line of text."""

COLOURS = {"a2a-celery": "#0b6e4f", "floor": "#b3541e", "sdk": "#4a5899", "cluster": "#7a1f5c"}
OTHERS = "#555555"


def picture(results: Iterable[Result]) -> str:
    """Return an SVG with the curves of `results`."""
    curve_results = [result for result in results if result.curves]
    panels = "\n".join(_panel(result, number * HEIGHT) for number, result in enumerate(curve_results))
    height = max(1, len(curve_results)) * HEIGHT
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="sans-serif" font-size="12">\n<rect width="{WIDTH}" height="{height}" fill="white"/>\n'
        f"{panels}\n</svg>\n"
    )


def _panel(result: Result, top: int) -> str:
    """Draw the values from 0 upwards against a logarithmic axis."""
    points = [point for curve in result.curves.values() for point in curve]
    least, most = (math.log10(end([x for x, _ in points])) for end in (min, max))
    highest = max(y for _, y in points) or 1.0
    bottom = top + HEIGHT - BOTTOM

    def across(x: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * ((math.log10(x) - least) / ((most - least) or 1))

    def up(y: float) -> float:
        return bottom - (HEIGHT - TOP - BOTTOM) * y / highest

    parts = [
        f'<text x="{LEFT}" y="{top + 24}" font-size="14">{escape(result.what)}</text>',
        f'<text x="{LEFT}" y="{top + 41}" fill="#555">{escape(result.curve_unit)}</text>',
        f'<path d="M{LEFT} {top + TOP}V{bottom}H{WIDTH - RIGHT}" fill="none" stroke="#999"/>',
        f'<text x="{WIDTH - RIGHT}" y="{bottom + 34}" text-anchor="end" fill="#555">{escape(result.along)}</text>',
        *(_text(across(x), bottom + 17, f"{x:,.0f}", "middle") for x in sorted({x for x, _ in points})),
        *(_text(LEFT - 6, up(y) + 4, f"{y:.3g}", "end") for y in (0.0, highest / 2, highest)),
    ]
    lines = {server: [(across(x), up(y)) for x, y in sorted(curve)] for server, curve in result.curves.items()}
    names = _apart({server: line[-1][1] for server, line in lines.items()})
    for server, line in lines.items():
        parts += _line(server, line, names[server], COLOURS.get(server, OTHERS))
    return "\n".join(parts)


def _apart(heights: Mapping[str, float]) -> dict[str, float]:
    """Return the heights of the names, some moved down so that the names do not overlap."""
    placed: dict[str, float] = {}
    above = math.inf
    for server, height in sorted(heights.items(), key=lambda item: -item[1]):
        above = placed[server] = min(height, above - LINE)
    return placed


def _line(server: str, points: Sequence[tuple[float, float]], height: float, colour: str) -> list[str]:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]
    name = f'<text x="{points[-1][0] + 8:.1f}" y="{height + 4:.1f}" fill="{colour}">{escape(server)}</text>'
    return [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>', *dots, name]


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="#555">{escape(text)}</text>'
