"""Runs and canvases as Celery knows them: its result backend and its revokes."""
