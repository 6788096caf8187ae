"""Commands to try once the fleet is up. The whole block is valid shell input."""

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


def next_steps(agents: Mapping[str, Agent], url: str, grpc_port: int | None, location: str, folder: Path | None) -> str:
    """Return the text. `url` is the gateway's; `location` and `folder` name the app (see `AppLocation`)."""
    first = next(iter(agents))
    # the last one that streams, so that the second example uses another agent than the first
    streaming = [name for name, agent in agents.items() if agent.card.capabilities.streaming and name != first]
    second = streaming[0] if streaming else first
    width = max(map(len, agents))
    lines = ["", f"# Ready: {len(agents)} agent{'s' if len(agents) > 1 else ''} at {url}"]
    for name, agent in agents.items():
        lines.append(f"#   {name:{width}}  {_agent_url(url, name)}  {_one_line(agent.card.description)}".rstrip())
    lines += [f"# Card of the first: {url}{AGENT_CARD_WELL_KNOWN_PATH}"]
    if grpc_port is not None:
        lines += [f"# gRPC: port {grpc_port}"]
    lines += ["", "# A message, over HTTP+JSON:", _curl("curl -s", f"{_agent_url(url, first)}message:send", "try-1")]
    lines += ["", "# A stream:", _curl("curl -sN", f"{_agent_url(url, second)}message:stream", "try-2")]
    snippet = SDK_SNIPPET.format(url=_agent_url(url, second), text=TEXT)
    lines += ["", "# With the SDK's client:", f"{shlex.quote(sys.executable)} - <<'END'", snippet, "END"]
    lines += ["", "# From the command line; also get, tail, cancel, list:"]
    lines += [f"{_celery(location, folder)} a2a send {second} {TEXT} --url {url}"]
    lines += ["", "# Ctrl-C stops everything", ""]
    return "\n".join(lines)


def _agent_url(url: str, name: str) -> str:
    return f"{url}/agents/{name}/"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _curl(command: str, url: str, message_id: str) -> str:
    body = {"message": {"messageId": message_id, "role": "ROLE_USER", "parts": [{"text": TEXT}]}}
    headers = "-H 'A2A-Version: 1.0' -H 'Content-Type: application/json'"
    return f"{command} {url} {headers} \\\n  -d '{json.dumps(body)}'"


def _celery(location: str, folder: Path | None) -> str:
    """Return a ``celery -A location`` that works in the current folder."""
    beside = Path(sys.executable).parent / "celery"
    on_path = shutil.which("celery")
    command = "celery" if on_path and os.path.samefile(Path(on_path).parent, beside.parent) else str(beside)
    if not beside.exists():
        command = f"{shlex.quote(sys.executable)} -m celery"
    if folder is not None and folder != Path.cwd():
        command += f" --workdir {shlex.quote(str(folder))}"
    return f"{command} -A {location}"
