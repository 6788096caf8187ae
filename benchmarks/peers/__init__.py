"""What this project is measured beside: each serves the same two agents, echo and count, over HTTP+JSON."""
