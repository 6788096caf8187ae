"""OpenAPI document of the HTTP+JSON binding."""
