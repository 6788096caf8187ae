"""Operator commands. They read and change the store and control workers, across all tenants and owners."""
