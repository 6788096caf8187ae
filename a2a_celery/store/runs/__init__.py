"""Runs: dispatch, claim, append and settle, release, suspension, recovery, journal and activities."""
