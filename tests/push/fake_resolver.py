"""DNS resolver for tests."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address, ip_network

from a2a_celery.push.network import Address

LOCAL = (ip_network("127.0.0.0/8"), ip_network("::1/128"))


class FakeResolver:
    """Resolver that returns the answers for a name one after the other, and then repeats the last answer."""

    def __init__(self, **answers: list[str]) -> None:
        self._answers = {name.replace("_", "."): texts for name, texts in answers.items()}
        self.asked: list[str] = []
        self.closed = False

    async def resolve(self, host: str) -> Sequence[Address]:
        """Return the addresses in the next answer for `host`. An answer is a string of addresses separated by
        spaces."""
        self.asked.append(host)
        if host not in self._answers:
            raise OSError("no such name")
        answers = self._answers[host]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        return [ip_address(text) for text in answer.split()]

    async def aclose(self) -> None:
        self.closed = True
