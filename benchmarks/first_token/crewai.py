"""Texts of CrewAI without A2A. CrewAI needs a separate environment, because its pins exclude other frameworks."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, cast

from crewai.types.streaming import CrewStreamingOutput

from a2a_celery.frameworks.crewai import CHAT_MESSAGES
from workers import with_crewai

from . import TEXT


async def crewai_alone() -> AsyncIterator[str]:
    crew = with_crewai.make_crew(cast(Any, None))  # only its tool needs the turn, and the tool is not called
    crew.stream = True
    inputs = {CHAT_MESSAGES: json.dumps([{"role": "user", "content": TEXT}])}
    async for chunk in cast(CrewStreamingOutput, await crew.kickoff_async(inputs)):
        yield chunk.content


ALONE = {"crewai": crewai_alone}
