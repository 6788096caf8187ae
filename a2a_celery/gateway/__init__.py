"""A2A in: the SDK's own routes and dispatchers over one `RequestHandler` of ours. Runs no agent code, keeps no state.

``asgi`` puts it together; ``handler`` is the protocol's operations; ``checks`` what is refused before anything is
stored; ``streams`` how a log becomes an answer; ``faults`` how errors of ours become errors of the protocol;
``legacy`` what protocol 0.3 needs beyond the SDK's adapters.
"""
