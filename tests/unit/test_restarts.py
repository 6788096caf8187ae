"""Redis server for tests that kill and restart the server."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from tests.support.processes.restarts import allow_writes, mortal_redis, refuse_writes


@pytest.mark.parametrize("ends_before", [False, True], ids=["killed", "ended before"])
def test_a_server_killed_during_a_save_starts_again(tmp_path: Path, ends_before: bool) -> None:
    with mortal_redis(tmp_path / "data") as server:
        with redis.Redis.from_url(server.store_url) as client:
            client.set("key", "value")
            client.config_set("rdb-key-save-delay", 60_000_000)
            client.bgsave()

        if ends_before:
            assert server.process is not None
            server.process.kill()
            server.process.wait()
        server.die()
        server.start()

        with redis.Redis.from_url(server.store_url) as client:
            assert client.get("key") == b"value"


def test_a_server_that_saves_for_its_replica_can_refuse_writes(tmp_path: Path) -> None:
    with mortal_redis(tmp_path / "data") as server, redis.Redis.from_url(server.store_url) as client:
        client.set("key", "value")
        client.config_set("rdb-key-save-delay", 60_000_000)
        client.bgsave()

        refuse_writes(server, "MISCONF")

        with pytest.raises(redis.ResponseError, match="MISCONF"):
            client.set("key", "another")
        allow_writes(server)
        assert client.set("key", "another")
