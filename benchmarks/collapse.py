"""Detection of ratios that are less than half as good as the recorded ones.

On a busy machine, a benchmark with a limit of ten percent fails without a cause in the code. Other load does not halve
the ratio of two servers in one run.
"""

from __future__ import annotations

from collections.abc import Iterable

from .results import Result

TWICE = 2.0
"""Factor by which a collapsed ratio is worse than the recorded one."""


def collapsed(results: Iterable[Result], recorded: Iterable[Result]) -> list[str]:
    """Return a line for each ratio that, in every round, is at least twice as bad as the recorded ratio."""
    lines = []
    earlier_results = {result.name: result for result in recorded}
    for result in results:
        earlier = earlier_results.get(result.name)
        for peer in earlier.peers if earlier else ():
            if earlier is None or peer not in result.figures:
                continue
            before, ratio = earlier.ratio(peer).median, result.ratio(peer)
            now = max(ratio.high, ratio.median) if result.more_is_better else min(ratio.low, ratio.median)
            worse = before / now if result.more_is_better else now / before
            if worse > TWICE:
                lines.append(
                    f"{result.name}: a2a-celery / {peer} is {now:.2f} at best, and was {before:.2f} when recorded"
                )
    return lines
