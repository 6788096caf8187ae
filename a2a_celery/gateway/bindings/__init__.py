"""Protocol bindings: HTTP+JSON, JSON-RPC and gRPC of protocol 1.0, and protocol 0.3 through the SDK's adapters."""
