"""Roles and listeners that read Celery's result backend and revokes."""
