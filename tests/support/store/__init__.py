"""Stored states: seeds, views, random walks and checks of what remains."""
