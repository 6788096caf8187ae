"""Event loop of a process: uvloop's if the extra ``fast`` is installed, else asyncio's."""

from __future__ import annotations

import _thread
import asyncio

try:
    from uvloop import new_event_loop as fastest_loop
except ImportError:
    from asyncio import new_event_loop as fastest_loop


def new_loop(*, uvloop: bool) -> asyncio.AbstractEventLoop:
    """A new event loop: uvloop's if it is wanted (the setting ``uvloop``) and installed, and threads are threads.

    Under gevent they are greenlets: asyncio's own loop waits as these do, and uvloop's would hold up all of them.
    """
    threads_are_threads = _thread.start_new_thread.__module__ == "_thread"
    loop: asyncio.AbstractEventLoop = fastest_loop() if uvloop and threads_are_threads else asyncio.new_event_loop()
    return loop
