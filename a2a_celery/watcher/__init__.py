"""The watcher looks after what others dropped. Any number of them may run; they share the work without a leader.

Every loop has the same small life (``loops``): start, one tick after another, stop. One file per role: ``dispatcher``
publishes runs that no worker claimed, ``pauses`` ends those that nobody answers. ``service`` starts and stops them.
"""
