"""Authentication of callers over HTTP and gRPC: bearer tokens, API keys, and client certificates verified by a proxy.

``from_settings`` creates an `Authenticator`. ``http`` and ``grpc`` authenticate the requests of a binding and return an
`Identity`. Credentials never leave this package: no log, error or run contains them.
"""
