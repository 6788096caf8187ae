"""Time to the first text of framework agents."""

TEXT = "hello"
"""Text of each message."""
