"""Runs: dispatch, claim, append and settle, release, suspension, recovery, sessions, journal and steps."""
