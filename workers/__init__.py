"""Sample agents. ``celery -A workers.app worker`` runs one worker, and ``a2a-celery demo`` runs a complete fleet."""
