"""Chaos run: a plan of disruptions, a fleet that suffers them, clients, and checks of the result."""
