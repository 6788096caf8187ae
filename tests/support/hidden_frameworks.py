"""Program that creates the gateway of the samples as if some modules were not installed.

The arguments are the names of the hidden modules. The program prints a JSON list: the names of the served agents, and
the names of all imported modules.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys


def main(hidden: list[str]) -> None:
    """Create the gateway and print its agents and modules."""
    find_spec = importlib.util.find_spec
    importlib.util.find_spec = lambda name, *more: None if name in hidden else find_spec(name, *more)
    samples = importlib.import_module("workers.app")
    samples.app.loader.import_default_modules()
    samples.a2a.asgi()
    print(json.dumps([list(samples.a2a.agents), list(sys.modules)]))


if __name__ == "__main__":
    main(sys.argv[1:])
