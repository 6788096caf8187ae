"""Waits of function agents for a time or a signal: `Turn.sleep` and `Turn.wait_for`.

The feature uses ``features/steps``: the journal of the turn records the end of each wait. The core suspends the run and
resumes the turn, also for `Turn.call`.
"""
