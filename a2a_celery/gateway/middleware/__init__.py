"""Steps that surround every request: tracing, body checks, large responses, extensions, Retry-After."""
