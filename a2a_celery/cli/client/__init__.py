"""Commands for clients of an agent, which call a gateway as any other A2A client does."""
