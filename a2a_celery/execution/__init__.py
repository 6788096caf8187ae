"""Worker side of an app, from the Celery message of a run to the last event of that run.

`run` executes one run from claim to settlement. `celery` contains the Celery tasks, requests and signals, and `process`
contains the state of a worker process. `agents` calls an agent's code, and `events` writes the agent's events to the
store.
"""
