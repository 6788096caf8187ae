"""Celery side of a worker: tasks, requests, signals, events and remote control."""
