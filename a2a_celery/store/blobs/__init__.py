"""Large parts of messages, stored in an object store."""
