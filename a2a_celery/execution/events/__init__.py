"""Path of a run's events from the agent to the store: translation, batching, steps and settlement."""
