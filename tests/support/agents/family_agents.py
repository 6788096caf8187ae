"""Parent and child agents that call each other over HTTP, through the gateway at TEST_GATEWAY, or without HTTP."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from a2a_celery import ChildFailed, ChildRefused, Turn
from a2a_celery.client import RemoteAgent
from a2a_celery.client.calling import call_task
from tests.support.agents.basic import a2a, app

call = call_task(app)


def url_of(agent: str) -> str:
    """Return the URL of an agent."""
    return f"{os.environ['TEST_GATEWAY']}/agents/{agent}"


@a2a.agent("waits")
async def waits(turn: Turn) -> None:
    """Wait until the task is cancelled."""
    await asyncio.get_running_loop().create_future()


async def begin(agent: str, text: str, *, cancel_with_parent: bool = True) -> str:
    """Start a task of `agent` over HTTP and return the task's id."""
    async with RemoteAgent(url_of(agent), cancel_with_parent=cancel_with_parent) as remote:
        return (await remote.submit(remote.session().message(text))).task_id


async def wait_until_exists(path: str) -> None:
    """Wait until the test has created a file."""
    while not Path(path).exists():  # noqa: ASYNC110, ASYNC240
        await asyncio.sleep(0.02)


@a2a.agent("starts", cancel_grace=1)
async def starts(turn: Turn) -> str:
    """Start one child task that is cancelled with the parent, and one that survives. Then ask, wait or fail as the
    message requests."""
    await begin("relays", "wait")
    await begin("waits", "survive", cancel_with_parent=False)
    await turn.say("started")
    if turn.text == "ask":
        await turn.ask("And now?")
    if turn.text == "wait":
        await asyncio.get_running_loop().create_future()
    match turn.text.split(maxsplit=1):
        case ["fail", path]:
            await wait_until_exists(path)
            raise RuntimeError
    return "done"


a2a.agent("mortal", description="Starts tasks on a worker that dies.", queue=f"{app.conf.task_default_queue}-mortal")(
    starts
)


@a2a.agent("relays")
async def relays(turn: Turn) -> None:
    """Start a child task and wait until cancelled."""
    await begin("waits", "wait")
    await asyncio.get_running_loop().create_future()


@a2a.agent("steps")
async def steps(turn: Turn) -> None:
    """Publish a chain of two steps and wait until cancelled."""
    canvas = call.s(url_of("echo"), "first") | call.si(url_of("waits"), "second")
    await asyncio.to_thread(canvas.apply_async)
    await asyncio.get_running_loop().create_future()


@a2a.agent("recurses")
async def recurses(turn: Turn) -> str:
    """Call this agent recursively over HTTP until the store rejects a call. Return the error."""
    async with RemoteAgent(url_of("recurses")) as remote:
        try:
            result = await remote.session().send(turn.text)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return result.text


@a2a.agent("child")
async def child(turn: Turn) -> str:
    """Execute the command in the message. Without a command, return the caller and the text."""
    match turn.text.split(maxsplit=1):
        case ["fail"]:
            raise RuntimeError("a secret")
        case ["ask"]:
            return await turn.ask("How many?")
        case ["wait", path]:
            await wait_until_exists(path)
            return "waited"
        case ["forever"]:
            await asyncio.get_running_loop().create_future()
    return f"{turn.caller.user}|{turn.text}"


def describe_failure(error: ChildFailed) -> str:
    """Return the details of the exception that a parent receives for a failed child."""
    return f"{type(error).__name__}: {error} | {error.state} | {error.task_id}"


@a2a.agent("calls", max_attempts=3)
async def calls(turn: Turn) -> str:
    """Call the child concurrently with each line of the message."""
    try:
        results = await asyncio.gather(*(turn.call("child", line) for line in turn.text.splitlines()))
    except ChildFailed as error:
        return describe_failure(error)
    return " ".join(result.text for result in results)


a2a.agent("interruptible-calls", description="Calls.", on_message="interrupt")(calls)


a2a.agent("mortal-calls", description="Calls.", max_attempts=3, queue=f"{app.conf.task_default_queue}-mortal")(calls)


@a2a.agent("single-calls", queue=f"{app.conf.task_default_queue}-single")
async def single_calls(turn: Turn) -> str:
    """Call an agent of the same queue concurrently with each line of the message."""
    results = await asyncio.gather(*(turn.call("single-child", line) for line in turn.text.splitlines()))
    return " ".join(result.text for result in results)


a2a.agent("single-child", description="Echoes.", queue=f"{app.conf.task_default_queue}-single")(child)


@a2a.agent("calls-blocking")
def calls_blocking(turn: Turn) -> str:
    """Call the child twice in sequence from a plain function."""
    first = turn.blocking.call("child", turn.text)
    return str(turn.blocking.call("child", f"after {first.text}").text)


@a2a.agent("calls-url")
async def calls_url(turn: Turn) -> str:
    """Call the child over HTTP."""
    result = await turn.call(url_of("child"), turn.text)
    return str(result.text)


@a2a.agent("calls-itself")
async def calls_itself(turn: Turn) -> str:
    """Call this agent recursively without HTTP until the store rejects a call. Return the error."""
    try:
        return str((await turn.call("calls-itself", turn.text)).text)
    except ChildRefused as error:
        return str(error)


@a2a.agent("retries", autoretry_for=(OSError,), default_retry_delay=0, max_retries=2)
async def retries(turn: Turn) -> str:
    """Fail once after a call."""
    result = await turn.call("child", turn.text)
    if not turn.retries:
        raise OSError
    return str(result.text)
