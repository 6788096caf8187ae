"""Commands that call an agent or a gateway as any other A2A client does."""
