"""An executor that ends the process that builds it."""

import sys


class Nobody:
    """Is never built."""

    def __init__(self) -> None:
        sys.exit(7)
