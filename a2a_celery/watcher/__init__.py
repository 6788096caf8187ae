"""The watcher: a process that recovers lost runs, dispatches unclaimed runs, and delivers events to webhooks.

Any number of watchers may run. They share the work without a leader. Each file holds one role, or roles of one kind.
``role_loop`` ticks a role, and ``service`` starts and stops all of them.
"""
