"""ASGI application with the shop's pages, and with the gateway under /a2a."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from django.core.asgi import get_asgi_application
from starlette.applications import Starlette
from starlette.routing import Mount

pages = get_asgi_application()  # sets Django up, before agents are imported

from .celery import a2a  # noqa: E402

gateway = a2a.asgi()


@asynccontextmanager
async def lifespan(_: Starlette) -> AsyncIterator[None]:
    async with gateway.router.lifespan_context(gateway):
        yield


application = Starlette(routes=[Mount("/a2a", app=gateway), Mount("/", app=pages)], lifespan=lifespan)
