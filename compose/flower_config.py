"""Configuration of Flower: the users who may open its pages, revoke tasks and shut down workers."""

from pathlib import Path

basic_auth = [Path("/run/secrets/flower_auth").read_text(encoding="utf-8").strip()]
"""Credentials in the form ``user:password``, which Flower's pages and API require."""
