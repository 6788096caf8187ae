"""Sequences of the oracle, on a private Redis server with scripts that read the oracle's clock."""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from inspect import getfile
from multiprocessing import get_context
from pathlib import Path
from unittest.mock import patch

import redis.asyncio

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.features.families import section as families
from a2a_celery.features.webhooks import deliveries
from a2a_celery.store import Keys, operation
from a2a_celery.store.blobs.blob_store import Blobs
from a2a_celery.store.blobs.object_store import ObjectStore
from a2a_celery.store.tasks import commands, signals
from a2a_celery.store.verbs import SECTIONS
from tests.support.store.seeds import Seeds
from tests.support.store.view import View
from tests.support.store.walk import PHASES
from tests.tools.oracle.moves import CATALOG
from tests.tools.oracle.recorded_store import CLOCK, START_US, Client, Outcomes, RecordedStore, Views
from tests.tools.oracle.recorder import FEATURES, SMALL_LIMITS, Recorder
from tests.tools.oracle.transcript import Transcript

MOVES_PER_SEQUENCE = 16
FEATURE_SHARE = 0.15
"""Share of the sequences that use a feature."""

BLOB_THRESHOLD = 4096

TIME = "redis.call('TIME')"
ORACLE_TIME = f"""(function()
  local t = redis.call('GET', '{CLOCK}')
  return {{string.sub(t, 1, -7), string.sub(t, -6)}}
end)()"""

Mutation = tuple[str, str, str]
"""Path of a script or of a section, a text of it, and the text that replaces it."""


@dataclass(frozen=True)
class Recording:
    """Lines of a sequence, and the outcomes of all calls."""

    lines: list[str]
    outcomes: Outcomes

    @property
    def scripts(self) -> set[str]:
        """Names of the scripts that the sequence has called."""
        return {name for name, _ in self.outcomes}


def uses(seed: int, sequence: int, feature: str) -> bool:
    """Return True if a sequence uses a feature. The result does not depend on the other features."""
    return random.Random(f"{seed}/{sequence}/{feature}").random() < FEATURE_SHARE


class Scripts:
    """Scripts that read the oracle's clock, and small limits. This process uses both inside the ``with`` block.

    Args:
        mutation: Change of a script or of a section, or None.
    """

    def __init__(self, mutation: Mutation | None = None) -> None:
        self._mutation = mutation
        self._original = (operation.SCRIPTS, operation.FEATURES)
        self._limits = ExitStack()

    def __enter__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="a2a-oracle-"))
        for folder in self._original:
            shutil.copytree(folder, self._folder / folder.name, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
        if self._mutation is not None:
            self._mutate(*self._mutation)
        for path in self._folder.rglob("*.lua"):
            path.write_text(path.read_text().replace(TIME, ORACLE_TIME))
        self._use(*(self._folder / folder.name for folder in self._original))
        for name, limit in SMALL_LIMITS.items():
            for module in (commands, deliveries, families, signals):
                if hasattr(module, name):
                    self._limits.enter_context(patch.object(module, name, limit))

    def _mutate(self, name: str, before: str, after: str) -> None:
        kinds = {f"features/{code.table.name}/{Path(getfile(kind)).stem}.lua": kind for kind, code in SECTIONS.items()}
        kind = kinds.get(name)
        path = self._folder / (name if name.startswith("features/") else f"scripts/{name}")
        text = path.read_text() if kind is None else SECTIONS[kind].text
        if text.count(before) != 1:
            raise ValueError(f"{name} contains {before!r} {text.count(before)} times, not once")
        if kind is None:
            path.write_text(text.replace(before, after))
        else:
            mutated = SECTIONS[kind]._replace(text=text.replace(before, after))
            self._limits.enter_context(patch.dict(SECTIONS, {kind: mutated}))

    def __exit__(self, *exc: object) -> None:
        self._limits.close()
        self._use(*self._original)
        shutil.rmtree(self._folder)

    @staticmethod
    def _use(scripts: Path, features: Path) -> None:
        operation.SCRIPTS, operation.FEATURES = scripts, features
        operation.script.cache_clear()
        operation.libraries.cache_clear()


async def walk(url: str, seed: int, sequence: int, outcomes: Outcomes) -> list[str]:
    """Run a sequence on an empty store, and return its lines."""
    keys, transcript = Keys("test"), Transcript()
    features = {
        name: random.Random(f"{seed}/{sequence}/{name}/moves") for name in FEATURES if uses(seed, sequence, name)
    }
    chance, probes = random.Random(f"{seed}/{sequence}"), random.Random(f"{seed}/{sequence}/probes")
    direct = redis.asyncio.Redis.from_url(url)
    with ExitStack() as stack:
        client = Client(url, _blobs(keys, features, stack), outcomes)
        stack.callback(client.close)
        client.send([("FLUSHALL",), ("SET", CLOCK, START_US)])
        store = RecordedStore(client, direct, transcript, keys, probes)
        if chance.random() < 0.3:
            client.send([("HSET", keys.installation, "archive", "1")])
        world = Recorder(
            Seeds(store, keys),  # type: ignore[arg-type]
            chance,
            await View.of(store, keys),
            store=store,
            views=Views(client, transcript),
            server_id=str(client.redis.info("server")["run_id"]),
            features=features,
            catalog=CATALOG,
        )
        try:
            await _move(world, transcript)
        except Exception as e:  # a changed script can violate the assumptions of the walk
            transcript.lines.append(f"error {e!r}")
    await direct.aclose()
    return transcript.lines


async def _move(world: Recorder, transcript: Transcript) -> None:
    for _ in range(MOVES_PER_SEQUENCE):
        if not world.view.records or (len(world.view.in_phase(*PHASES)) < 3 and world.chance.random() < 0.5):
            await world.create()
            await world.look()
        move = world.chance.choice([name for name in world.move_names() if world.is_possible(name)])
        transcript.lines.append(f"--- {move}")
        await world.act(move)
    await world.look_closely()


def _blobs(keys: Keys, features: Iterable[str], stack: ExitStack) -> Blobs | None:
    if "blobs in an object store" in features:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="a2a-oracle-"))
        return Blobs(ObjectStore(f"file://{folder}"), keys, BLOB_THRESHOLD)
    return Blobs(None, keys, BLOB_THRESHOLD) if "blobs in Redis" in features else None


def record(url: str, seed: int, sequence: int) -> Recording:
    """Run a sequence on an empty store, with the scripts that this process uses."""
    outcomes: Outcomes = Counter()
    return Recording(asyncio.run(walk(url, seed, sequence, outcomes)), outcomes)


@contextmanager
def running_store() -> Iterator[str]:
    """Run a Redis server for sequences, and yield its URL."""
    server = EmbeddedRedis()
    server.start()
    try:
        yield server.store_url
    finally:
        server.stop()


def recordings_of(seed: int, count: int) -> list[Recording]:
    """Run the first `count` sequences of a seed."""
    with running_store() as url, Scripts():
        return [record(url, seed, sequence) for sequence in range(count)]


def recordings(seeds: Iterable[int], count: int, processes: int) -> Iterator[tuple[int, list[Recording]]]:
    """Yield each seed with its recordings, in order."""
    numbers = list(seeds)
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        yield from zip(numbers, pool.map(recordings_of, numbers, [count] * len(numbers)), strict=True)
