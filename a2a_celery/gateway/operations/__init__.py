"""Steps of the A2A operations: validate a request, accept a message, follow a turn, read tasks."""
