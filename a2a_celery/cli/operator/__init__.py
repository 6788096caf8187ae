"""Commands for operators, which read the store and query the workers, across all tenants and owners."""
