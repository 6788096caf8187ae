"""Servers to compare this project with. Each serves the agents echo and count over HTTP+JSON."""
