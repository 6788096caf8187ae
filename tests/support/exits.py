"""An executor whose constructor ends the process."""

import sys


class ExitsWhenBuilt:
    """Executor whose constructor ends the process."""

    def __init__(self) -> None:
        sys.exit(7)
