"""Lines that ``dev`` and ``demo`` print when the fleet is ready, and the commands of ``dev --examples``."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from a2a.utils.constants import AGENT_CARD_WELL_KNOWN_PATH

from ...agents import Agent


def local_url(host: str, port: int) -> str:
    """Return the URL at which a client on this machine reaches a server that listens on `host`."""
    url_host = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "[::1]"}.get(host)
    if url_host is None:
        url_host = f"[{host}]" if ":" in host else host
    return f"http://{url_host}:{port}"


SDK_SNIPPET = """\
import asyncio
from a2a.client import create_client
from a2a.helpers import get_stream_response_text, new_text_message
from a2a.types import Role, SendMessageRequest

async def main():
    async with await create_client({url!r}) as client:
        request = SendMessageRequest(message=new_text_message({text!r}, role=Role.ROLE_USER))
        async for event in client.send_message(request):
            print(event.WhichOneof("payload"), get_stream_response_text(event))

asyncio.run(main())"""

TEXT = "Hello"


def ready_lines(
    agents: Mapping[str, Agent], url: str, grpc_port: int | None, seconds: float, location: str, *, has_page: bool
) -> str:
    """Return the lines that ``dev`` prints when the fleet is ready.

    Args:
        url: Address of the gateway.
        grpc_port: Port for gRPC, or None.
        seconds: Time that the fleet took to start.
        location: Location of the app for ``celery -A``.
        has_page: True if the gateway serves the operator's page.
    """
    page = f". Page: {url}/ui/" if has_page else ""
    grpc = "" if grpc_port is None else f" and gRPC port {grpc_port}"
    lines = [
        f"# Ready: {_count(agents)} at {url}{grpc} after {seconds:.1f} s{page}",
        f"# {_celery(location)} a2a dev --examples prints commands to try in another terminal",
        "# Ctrl-C stops everything",
    ]
    return "\n".join(lines)


def _count(agents: Mapping[str, Agent]) -> str:
    return f"{len(agents)} agent{'s' if len(agents) > 1 else ''}"


def next_steps(agents: Mapping[str, Agent], url: str, grpc_port: int | None, location: str) -> str:
    """Return a text that lists the agents and commands to try.

    Args:
        url: Address of the gateway.
        grpc_port: Port for gRPC, or None.
        location: Location of the app for ``celery -A``.
    """
    first = next(iter(agents))
    # prefer a streaming agent other than the first, so that the examples use two agents
    streaming = [name for name, agent in agents.items() if agent.card.capabilities.streaming and name != first]
    second = streaming[0] if streaming else first
    width = max(map(len, agents))
    lines = [f"# {_count(agents)} at {url}"]
    for name, agent in agents.items():
        lines.append(f"#   {name:{width}}  {_agent_url(url, name)}  {_one_line(agent.card.description)}".rstrip())
    lines += [f"# Card of the first: {url}{AGENT_CARD_WELL_KNOWN_PATH}", f"# OpenAPI document: {url}/openapi.json"]
    if grpc_port is not None:
        lines += [f"# gRPC: port {grpc_port}"]
    lines += ["", "# A message, over HTTP+JSON:", _curl("curl -s", f"{_agent_url(url, first)}message:send", "try-1")]
    lines += ["", "# A stream:", _curl("curl -sN", f"{_agent_url(url, second)}message:stream", "try-2")]
    snippet = SDK_SNIPPET.format(url=_agent_url(url, second), text=TEXT)
    lines += ["", "# With the SDK's client:", f"{shlex.quote(sys.executable)} - <<'END'", snippet, "END"]
    lines += ["", "# From the command line; also get, tail, cancel, list:"]
    lines += [f"{_celery(location)} a2a send {second} {TEXT} --url {url}"]
    return "\n".join(lines)


def _agent_url(url: str, name: str) -> str:
    return f"{url}/agents/{name}/"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _curl(command: str, url: str, message_id: str) -> str:
    body = {"message": {"messageId": message_id, "role": "ROLE_USER", "parts": [{"text": TEXT}]}}
    headers = "-H 'A2A-Version: 1.0' -H 'Content-Type: application/json'"
    return f"{command} {url} {headers} \\\n  -d '{json.dumps(body)}'"


def _celery(location: str) -> str:
    return f"{_program('celery') or f'{shlex.quote(sys.executable)} -m celery'} -A {location}"


def _program(name: str) -> str | None:
    """Return the shell command for a script of this environment, or None if there is no such script. The command is the
    script's name if it is on PATH, and its path otherwise."""
    sibling = Path(sys.executable).parent / name
    if not sibling.exists():
        return None
    on_path = shutil.which(name)
    is_found = on_path is not None and os.path.samefile(Path(on_path).parent, sibling.parent)
    return name if is_found else shlex.quote(str(sibling))


STORY_WORDS = 66
"""Number of words in the story of the tour, which must still be in progress when a process is killed. The story has
sentences of 22 words, so it ends with a whole sentence."""


def tour(agents: Mapping[str, Agent], url: str, folder: Path, seconds: float) -> str:
    """Return the tour of ``demo``.

    Args:
        folder: Folder with the files that contain the process ids.
        seconds: Time that the fleet took to start.
    """
    call = f"{_program('a2a-celery') or 'a2a-celery'} call"

    def kill(name: str, agent: str, text: str, word: str) -> str:
        # wait for a word of the agent, because a client may take seconds to start on a busy machine
        output, pid = shlex.quote(str(folder / f"{name}.out")), shlex.quote(str(folder / f"{name}.pid"))
        killer = f"(until grep -qs {word} {output}; do sleep 1; done; kill -9 $(cat {pid}))"
        return f'rm -f {output}; {killer} & {call} {_agent_url(url, agent)} "{text}" | tee {output}'

    lines = [
        "",
        f"# Ready: {len(agents)} agents at {url} after {seconds:.1f} s. Page: {url}/ui/",
        "# Try in another terminal:",
        "# 1. Answer the questions of an agent.",
        f'{call} {_agent_url(url, "booking")} "A table, please"',
        "# 2. Kill the worker during a report. Another worker continues it, and repeats no recorded step.",
        kill("worker", "report", "Bees", "read"),
        "# 3. Kill the gateway, which cuts the stream. The client continues it where it was cut.",
        kill("gateway", "story", f"{STORY_WORDS} words", "Once"),
        "# 4. Call an agent with any HTTP client.",
        _curl("curl -s", f"{_agent_url(url, 'echo')}message:send", "try-1"),
        "# Ctrl-C stops everything",
        "",
    ]
    return "\n".join(lines)
