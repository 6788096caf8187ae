"""``a2a-celery``: the commands that need no app."""

from __future__ import annotations

import click


@click.group()
@click.version_option(package_name="a2a-celery")
def main() -> None:
    """A2A (Agent2Agent protocol) on a Celery fleet."""
