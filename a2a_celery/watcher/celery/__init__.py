"""Roles and listeners for Celery's result backend and revoke commands."""
