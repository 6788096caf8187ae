"""Runs: claim, append and settle, dispatch, release, suspension, recovery, reminders, sessions, journal and steps."""
