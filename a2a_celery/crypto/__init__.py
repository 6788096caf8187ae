"""Keys, webhook signatures and encryption at rest."""
