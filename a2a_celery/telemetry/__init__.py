"""Traces, metrics and log lines of a deployment. ``names`` lists all their names.

No feature depends on telemetry. OpenTelemetry is an extra, which is imported only in a process that has configured it.
In other processes, the check for a tracer costs one dictionary lookup.
"""
