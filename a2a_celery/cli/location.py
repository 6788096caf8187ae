"""Where an app lives, as ``celery -A`` would name it: other processes have to import it."""

from __future__ import annotations

import sys

from celery import Celery

from ..errors import ConfigError


def app_location(app: Celery) -> str:
    """ "module:attribute" of `app`.

    Raises:
        ConfigError: no imported module holds it.
    """
    for name, module in list(sys.modules.items()):
        if name == "__main__" or module is None:
            continue
        for attribute, value in list(vars(module).items()):
            if value is app:
                return f"{name}:{attribute}"
    raise ConfigError(f"the Celery app {app.main!r} is in no module that another process could import")
