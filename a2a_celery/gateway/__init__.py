"""Gateway that serves the A2A protocol over HTTP and gRPC. The gateway runs no agent code and keeps no state.

``asgi`` composes the application and ``services`` its parts. ``handler`` has the operations of an agent; their steps
are in ``operations``. ``bindings`` translate between protocols and operations. ``middleware`` surrounds each request.
"""
