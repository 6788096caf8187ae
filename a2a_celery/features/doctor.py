"""Features in ``a2a doctor``: the checks that belong to features."""

from __future__ import annotations

from .dead_letters.doctor import dead_letters

CHECKS = (dead_letters,)
"""Checks, each a function of the survey that yields findings. The JSON output identifies a check by the name of its
function."""
