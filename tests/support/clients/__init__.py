"""Clients of a fleet: bindings, operators, browsers, and their credentials."""
