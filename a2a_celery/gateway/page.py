"""Operator's page ``/ui/``: its static files and the list of the gateway's agents.

The page is an A2A client that reads the agents' cards and sends A2A requests. The files of the page contain no tasks
and no secrets. The list of agents requires the credentials of the gateway.

Each file has its own route, so that requests cannot access files outside of the folder.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from hashlib import sha256
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from .. import __version__
from .bindings.endpoints import user_of
from .cards import has_current_copy
from .operator.role import OperatorRole

PATH = "/ui"

FOLDER = files(__package__) / "ui"

MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
"""Media types of the page's files by file extension. Files with other extensions are not served."""

POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self'",
    "connect-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "require-trusted-types-for": "'script'",
    "trusted-types": "'none'",
}
"""Content security policy: the page loads its own files and sends requests to its own origin. Text is never
interpreted as markup or code. The page repeats the policy in a meta element, in case another server serves it."""

ROOT_TEXT = """This is an A2A gateway (Agent2Agent protocol). Clients send their messages here.

Agent card: .well-known/agent-card.json
Health: health/ready
Operator's page: disabled. Set A2A_UI=on to serve it at ui/
"""
"""Response to a browser that opens the root of a gateway without the page."""

HEADERS = {
    "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in POLICY.items())
    + "; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # the browser revalidates a file before each use
    "Cache-Control": "no-cache",
}

IMMUTABLE = {**HEADERS, "Cache-Control": "max-age=31536000, immutable"}
"""Headers of a file under a path with the digest of all files: the browser never requests the file again."""

REFERENCE = re.compile(rb'(?<=href="|.src=")(?=[\w.]+\.(?:js|css|svg)")')
"""Position of a file's name in an attribute of the page."""

ACCEPTS_GZIP = re.compile(r"\bgzip\b(?!\s*;\s*q=0(\.0*)?\s*(,|$))", re.IGNORECASE)
"""Pattern of an Accept-Encoding header that allows gzip."""


def list_route(agents: Iterable[str], role: OperatorRole, *, can_sign_in: bool) -> Route:
    """Return the route of ``/ui/agents.json``. The response contains the relative card addresses of `agents`, the name
    of the caller, whether the caller is an operator, whether callers can sign in on the page, the version of the
    package, and that the gateway serves ``/ui/inbox.json``."""
    cards = [{"name": name, "card": f"../agents/{name}/.well-known/agent-card.json"} for name in agents]
    shared = {"inbox": True, "signIn": can_sign_in, "version": __version__}

    async def list_agents(request: Request) -> Response:
        owner = user_of(request).user_name
        content = {**shared, "agents": cards, "owner": owner, "operator": role.includes(owner)}
        return JSONResponse(content, headers={**HEADERS, "Cache-Control": "no-store"})

    return Route(f"{PATH}/agents.json", list_agents, methods=["GET"])


def root_route(*, has_page: bool) -> Route:
    """Return the route of GET ``/``. The route redirects to the page or, without a page, returns a text that describes
    the gateway."""

    async def redirect(_: Request) -> Response:
        return Response(status_code=307, headers={"Location": f"{PATH.lstrip('/')}/"})

    async def describe(_: Request) -> Response:
        return PlainTextResponse(ROOT_TEXT, headers={"X-Content-Type-Options": "nosniff"})

    return Route("/", redirect if has_page else describe, methods=["GET"])


def shell_routes() -> list[Route]:
    """Return the routes of ``/ui/`` and its files, which are the same for every user.

    The page refers to its files under a path with the digest of all files. The browser caches these paths forever, and
    requests all files after an upgrade.
    """

    async def with_slash(request: Request) -> Response:
        # relative, because a proxy may serve this page under another path
        query = f"?{request.url.query}" if request.url.query else ""
        return Response(status_code=307, headers={"Location": f"{PATH.lstrip('/')}/{query}"})

    contents = _contents()
    version = sha256(b"".join(contents.values())).hexdigest()[:16]
    page = REFERENCE.sub(f"{version}/".encode(), contents.pop("index.html"))
    routes = [
        Route(PATH, with_slash, methods=["GET"]),
        Route(f"{PATH}/", _file(page, MEDIA_TYPES["html"]), methods=["GET"]),
    ]
    for name, content in contents.items():
        for path, headers in ((name, HEADERS), (f"{version}/{name}", IMMUTABLE)):
            serve = _file(content, MEDIA_TYPES[name.rpartition(".")[2]], headers)
            routes.append(Route(f"{PATH}/{path}", serve, methods=["GET"]))
    return routes


def _contents() -> dict[str, bytes]:
    names = sorted(entry.name for entry in FOLDER.iterdir() if entry.name.rpartition(".")[2] in MEDIA_TYPES)
    return {name: (FOLDER / name).read_bytes() for name in names}


@cache
def _compressed(content: bytes) -> bytes:
    """Compress a file once, because each file has two paths and an application may be built several times."""
    return gzip.compress(content, mtime=0)


def _file(content: bytes, media_type: str, file_headers: Mapping[str, str] = HEADERS) -> Callable[[Request], Response]:
    tag = f'W/"{sha256(content).hexdigest()[:32]}"'  # weak, because the compressed file has the same tag
    compressed_content = _compressed(content)

    def serve(request: Request) -> Response:
        headers = {**file_headers, "ETag": tag, "Vary": "Accept-Encoding"}
        if has_current_copy(request, tag):
            return Response(status_code=304, headers=headers)
        if ACCEPTS_GZIP.search(request.headers.get("accept-encoding", "")):
            return Response(compressed_content, media_type=media_type, headers={**headers, "Content-Encoding": "gzip"})
        return Response(content, media_type=media_type, headers=headers)

    return serve
