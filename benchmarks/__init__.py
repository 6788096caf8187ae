"""Measurements, as ratios taken in one run. Each prints a table, and exits non-zero on collapse."""
