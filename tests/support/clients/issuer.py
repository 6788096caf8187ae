"""Issuer of bearer tokens that serves a JWK Set, like an OpenID Connect provider."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from joserfc.jwk import RSAKey

from tests.support.clients.credentials import bearer, rsa_key, token


class Issuer:
    """Issuer of tokens.

    Attributes:
        keys: Keys of the JWK Set. The first key signs tokens.
        fetch_count: Number of fetches of the JWK Set.
        is_down: Respond to fetches with an error.
        url: URL of the JWK Set.
    """

    def __init__(self) -> None:
        self.keys: list[RSAKey] = [rsa_key("first")]
        self.fetch_count = 0
        self.is_down = False
        self.url = ""

    def document(self) -> bytes:
        """Count a fetch and return the JWK Set."""
        self.fetch_count += 1
        return json.dumps({"keys": [key.as_dict(private=False) for key in self.keys]}).encode()

    def headers(self, owner: str, **claims: Any) -> dict[str, str]:
        """Return request headers with a token of `owner`. `claims` updates the claims of the token."""
        return bearer(token(self.keys[0], "RS256", owner, **claims))


@contextmanager
def running_issuer() -> Iterator[Issuer]:
    """Run an issuer with an HTTP server."""
    issuer = Issuer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if issuer.is_down:
                self.send_error(503)
                return
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(issuer.document())

        def log_message(self, *_: Any) -> None:
            """Suppress the access log."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    issuer.url = f"http://127.0.0.1:{server.server_port}/jwks.json"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield issuer
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
