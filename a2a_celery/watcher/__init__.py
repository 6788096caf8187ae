"""The watcher: a process that recovers lost runs, dispatches unclaimed runs, and delivers events to webhooks.

Any number of watchers may run. They share the work without a leader. Each module contains one role, or roles of one
kind. ``role_loop`` runs a role periodically, and ``service`` starts and stops all roles.
"""
