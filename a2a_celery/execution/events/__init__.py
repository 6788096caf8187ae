"""Events of a run on their way from the agent to the store: translation, batching, steps and settlement."""
