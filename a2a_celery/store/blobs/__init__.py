"""Large parts of messages, kept in an object store."""
