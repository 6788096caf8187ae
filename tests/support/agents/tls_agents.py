"""App with all test agents and tasks, and with the broker and result settings of docs/security.md."""

from __future__ import annotations

import os
import ssl
from typing import Any

from tests.support.agents.plain_tasks import a2a, app

__all__ = ["a2a", "app"]

TLS: dict[str, Any] = {}
if "TEST_CA" in os.environ:
    TLS = {
        "ca_certs": os.environ["TEST_CA"],
        "certfile": os.environ["TEST_CERTIFICATE"],
        "keyfile": os.environ["TEST_KEY"],
        "cert_reqs": ssl.CERT_REQUIRED,
    }
ON_REDIS = os.environ["CELERY_BROKER_URL"].startswith("redis")

if TLS:
    app.conf.broker_use_ssl = TLS
if ON_REDIS and TLS:  # the results are on the same server
    for_redis = {f"ssl_{name}": value for name, value in TLS.items()}
    app.conf.broker_use_ssl = for_redis
    app.conf.redis_backend_use_ssl = for_redis
    app.conf.broker_transport_options = {"global_keyprefix": "acme-broker:"}
app.conf.result_backend_transport_options = {"global_keyprefix": "acme-results:"}
