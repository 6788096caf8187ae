"""Path of a run's events from the agent to the store: translation, batching, activities and settlement."""
