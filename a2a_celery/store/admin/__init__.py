"""Administration of a store: schema, start checks, metrics, lists for operators, archiving and memory."""
