"""The application factory for a gateway with several processes: each imports the Celery app by name."""

from __future__ import annotations

import os

from celery.app.utils import find_app
from starlette.applications import Starlette

from ..app import A2A, import_modules
from ..telemetry.logs import set_up
from .commands import APP_VARIABLE, LEVEL_VARIABLE
from .forwarding import behind_proxies
from .stopping import told_to_stop


def asgi() -> Starlette:
    """The gateway of the app that the command was called with."""
    app = find_app(os.environ[APP_VARIABLE])
    import_modules(app)
    found = A2A.of(app)
    set_up(os.environ[LEVEL_VARIABLE], found.settings.log_format)
    return behind_proxies(told_to_stop(found.asgi()))
