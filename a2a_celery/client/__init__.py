"""The other side of A2A: for services that talk to agents, and hear from them."""
