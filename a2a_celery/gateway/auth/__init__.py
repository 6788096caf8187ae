"""Authentication of callers over HTTP and gRPC: bearer tokens, API keys, and client certificates verified by a proxy.

``from_settings`` creates an `Authenticator`; ``http`` and ``grpc`` put it in front of a binding; an `Identity` is its
result. Credentials never leave this package: neither for a log, nor an error, nor a run.
"""
