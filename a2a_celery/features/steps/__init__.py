"""Durable steps: function calls whose results are recorded in the journal of the turn, so that later runs of the turn
do not repeat the calls.

`journal` is the interface of a run to the journal of its turn. The features for questions, waits and calls, and the
adapters of frameworks, also use the journal. The store keeps the journal for the core; see ``lifecycle/journal.py``.
A step has the options of ``features/retries``.
"""
