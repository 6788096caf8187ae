"""Agents of each framework that follow one script, for the scenarios of `tests.frameworks.test_recorded_calls`."""
