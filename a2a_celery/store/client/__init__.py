"""Asyncio and blocking clients of the store, and their Redis connections."""
