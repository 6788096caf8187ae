"""Gateway that serves the A2A protocol over HTTP and gRPC. The gateway runs no agent code and keeps no state.

``asgi`` composes the application from the services of a process. ``handler`` implements the operations of an agent with
the steps in ``operations``. ``bindings`` translate between protocols and operations. ``middleware`` wraps each request.
``auth`` authenticates callers, and ``operator`` serves the operator's API.
"""
