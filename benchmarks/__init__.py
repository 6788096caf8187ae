"""Benchmarks. They report ratios of measurements in one run, because absolute numbers depend on the machine."""
