"""Commands for operators: they ask the store and the workers, across all tenants and owners."""
