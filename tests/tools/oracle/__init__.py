"""Oracle for the store: recorded results of random sequences of operations, to compare implementations.

    python -m tests.tools.oracle record FILE            # 20,000 sequences
    python -m tests.tools.oracle compare FILE           # with the same sequences of this implementation
    python -m tests.tools.oracle show SEED SEQUENCE     # all replies and views of one sequence
    python -m tests.tools.oracle reached                # calls of each script by outcome

A sequence is a random walk on a new store. The oracle records the parsed reply of each operation and a view of the
store after each move. The view contains what readers can see: tasks, logs, lists, journals, due lists, deliveries, dead
letters, metrics and published notifications, and not the keys and fields that an implementation chooses. Ids that are
not drawn from the seed are renamed in the order of their appearance. The scripts read the time from a key, which
advances with each operation.
"""
