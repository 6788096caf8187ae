"""Servers with which this project is compared, this project's agents, and helper processes."""
