"""Comparison of HTTP servers for the gateway: uvicorn with the gateway's protocols, and granian."""
