"""Who asks: bearer tokens, API keys, and what a proxy says of client certificates, over HTTP and gRPC.

``configured`` makes an `Authenticator` of the settings; ``http`` and ``grpc`` put it before a binding; an `Identity` is
what comes out. Nothing of a credential gets past this package: not into a log, an error, or what a run is told.
"""
