"""Commands for clients of an agent: they ask a gateway, as any other A2A client does."""
