"""Storage of large message parts in an object store."""
