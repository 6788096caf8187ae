"""Steps that surround every request: tracing, body checks, disconnects, large responses, extensions, Retry-After."""
