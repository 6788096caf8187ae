"""pytest plugin of a2a-celery: the fixtures `a2a_tester` and `a2a_fleet`.

pytest imports this module in every session, so it imports the package only when a fixture is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from a2a_celery.testing import AgentFleet, AgentTester


@pytest.fixture
def a2a_tester() -> type[AgentTester]:
    """The class `AgentTester`: ``async with a2a_tester(a2a, "echo") as tester``. The embedded Redis is shared by all
    tests of the process."""
    from a2a_celery.testing import AgentTester  # noqa: PLC0415 - a session that uses no fixture imports nothing

    return AgentTester


@pytest.fixture(scope="session")
def a2a_fleet() -> Iterator[Callable[..., AgentFleet]]:
    """Function that starts an `AgentFleet` with its arguments and returns it. The fleets stop at the end of the
    session. A second call with equal arguments returns the same fleet."""
    from a2a_celery.testing import AgentFleet  # noqa: PLC0415 - as above

    fleets: dict[str, AgentFleet] = {}
    with ExitStack() as stack:

        def start(app: str, **options: object) -> AgentFleet:
            key = repr((app, sorted(options.items())))
            if key not in fleets:
                fleets[key] = stack.enter_context(AgentFleet(app, **options))  # type: ignore[arg-type]
            return fleets[key]

        yield start
