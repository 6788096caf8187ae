"""Hostile requests: strategies, samples, a sender, and the agents that receive the requests."""
