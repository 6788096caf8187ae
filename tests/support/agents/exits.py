"""Executor that exits the process when it is created, in a separate module."""

import sys


class ExitsWhenBuilt:
    """Executor whose constructor calls `sys.exit`."""

    def __init__(self) -> None:
        sys.exit(7)
