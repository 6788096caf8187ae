"""Module of an executor that cannot be created."""

import sys


class ExitsWhenBuilt:
    """Executor whose constructor calls `sys.exit`."""

    def __init__(self) -> None:
        sys.exit(7)
