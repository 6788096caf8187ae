"""Traces, metrics and log lines of a deployment. ``names`` lists all of their names.

No function depends on telemetry, and telemetry costs nothing where it is off. OpenTelemetry is an extra. It is imported
only in a process that has configured it.
"""
