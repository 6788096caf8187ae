"""Traces, metrics and log lines of a deployment. ``names`` lists all their names.

No feature depends on telemetry, and disabled telemetry has no cost. OpenTelemetry is an extra, which is imported only
in a process that has configured it.
"""
