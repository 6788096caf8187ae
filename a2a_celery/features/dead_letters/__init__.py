"""Dead letters: an operator requeues a task whose run was lost.

A dead letter is a FAILED task that can be resubmitted: its worker was lost, or the code of its agent changed during a
turn with recorded steps. FAILED is a terminal state, so a dead letter is requeued as a new task with the same context,
caller and message. The new task refers to the dead letter.

The feature uses ``features/families``: the new task uses the called children of the dead letter again.
"""
