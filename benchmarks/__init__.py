"""Benchmarks of a2a_celery. They report ratios of measurements from one run, because absolute numbers depend on the
machine."""
