"""Operator's API ``/operator/v1``: the fleet and the tasks of all callers, without the contents of messages."""
