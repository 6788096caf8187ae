"""Inside a worker: what happens to a run between the Celery message and its last event.

``entry`` is the Celery task; ``process`` what a worker process has once (loop, store, leases); ``run`` the steps of a
run; ``events`` its way into the log; ``turn`` what a function agent is given; ``adapters`` how each kind is called.
"""
