"""Watcher process, which recovers lost runs, publishes unclaimed runs, and performs the roles of features.

Any number of watchers may run, and they share the work without a leader. A role is a part of this work that a watcher
performs periodically. ``role_loop`` contains the loop of a role, and ``service`` starts and stops all roles.
"""
