"""Worker side: everything between the Celery message of a run and the last event of that run.

`run` executes one run from claim to settlement. `celery` holds the Celery tasks, requests and signals; `process` the
state of a worker process; `agents` calls an agent's code; `events` carries the agent's events to the store.
"""
