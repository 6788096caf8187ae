"""What a deployment says of itself: traces, figures and log lines. ``names`` lists all of their names.

Whatever is told here is told of work that is done elsewhere: nothing depends on it, and where nobody listens it costs
nothing. OpenTelemetry is an extra, and is touched only in a process that has set it up.
"""
