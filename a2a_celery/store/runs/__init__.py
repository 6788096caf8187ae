"""Runs: dispatch, claim, append and settle, release, suspension, recovery, reminders, sessions, journal and steps."""
