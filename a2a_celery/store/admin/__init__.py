"""Administration of a store: schema, start checks, metrics, lists, archive and memory."""
