"""Receivers of what a fleet sends: webhooks, spans, metrics and events of Celery."""
