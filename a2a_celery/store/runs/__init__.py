"""Runs: claim, append and settle, dispatch, release, recovery, sessions and steps."""
