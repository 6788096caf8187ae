"""Results of plain Celery tasks and canvases, which watchers read from the result backend."""
