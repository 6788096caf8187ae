"""SDK cluster mode with the agent echo, on the PostgreSQL server at BENCHMARK_DATABASE_URL.

uvicorn benchmarks.peers.cluster:app
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from a2a.server.cluster import DatabaseTaskEventStream, VersionedDatabaseTaskStore
from a2a.server.request_handlers.default_request_handler_v2 import DefaultRequestHandlerV2
from sqlalchemy.ext.asyncio import create_async_engine
from starlette.applications import Starlette

from .sdk import Echo, card, mounted

engine = create_async_engine(os.environ["BENCHMARK_DATABASE_URL"])
store, events = VersionedDatabaseTaskStore(engine), DatabaseTaskEventStream(engine)
handler = DefaultRequestHandlerV2(Echo(), store, card("echo"), event_stream=events)


@asynccontextmanager
async def lifespan(_: Starlette) -> AsyncIterator[None]:
    await store.initialize()  # otherwise each concurrent first request would create the tables
    await events.initialize()
    yield
    await engine.dispose()


app = Starlette(routes=[mounted("echo", handler)], lifespan=lifespan)
