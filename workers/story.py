"""Agent that streams: each yielded text is a chunk of one artifact. A lost run begins again on another worker."""

import asyncio
from collections.abc import AsyncIterator
from itertools import cycle, islice

from a2a_celery import Turn

from .app import a2a

STORY = "Once upon a time a task was sent to a fleet of workers, and one of them did it, word by word."
WORDS = STORY.split()


@a2a.agent("story", description="Tells a short story, a word at a time.", max_attempts=3)
async def story(turn: Turn) -> AsyncIterator[str]:
    await turn.say("Let me think …")
    count = next((int(word) for word in turn.text.split() if word.isdecimal()), len(WORDS))
    for word in islice(cycle(WORDS), count):
        await asyncio.sleep(0.1)
        yield word + " "
