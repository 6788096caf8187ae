"""Keys, signatures of webhooks and encryption at rest."""
