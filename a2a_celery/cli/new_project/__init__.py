"""``a2a-celery init``: writes a project to start from."""
