"""Operator commands, which read and change the store and control workers, across all tenants and owners."""
