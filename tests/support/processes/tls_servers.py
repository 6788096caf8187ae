"""Servers with TLS and authentication: Redis with ACLs, and RabbitMQ with users."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import redis

from tests.support.certificates import Authority
from tests.support.processes.fleet import free_port
from tests.support.processes.rabbitmq import rabbitmq_node, skip_without
from tests.support.waiting import eventually

SALT = b"salt"


@dataclass(frozen=True)
class Server:
    """Server that requires TLS and a client certificate.

    Attributes:
        port: Port on 127.0.0.1.
        authority: Authority of all certificates.
        client: Paths of a client's key and certificate.
    """

    port: int
    authority: Authority
    client: tuple[Path, Path]

    @property
    def files(self) -> dict[str, str]:
        """Environment variables that the app in `tls_agents` reads."""
        key, certificate = self.client
        return {"TEST_CA": str(self.authority.file), "TEST_KEY": str(key), "TEST_CERTIFICATE": str(certificate)}


@contextmanager
def redis_with_tls(folder: Path, authority: Authority, acl: str) -> Iterator[Server]:
    """Run a Redis server with the users of `acl`, in the format of an aclfile, and a user `auditor` with all
    permissions."""
    program = built_with_tls()
    key, certificate = authority.issue("redis", "127.0.0.1")
    server = Server(free_port(), authority, authority.issue("client"))
    (folder / "users.acl").write_text(f"{acl.strip()}\nuser auditor on >auditor ~* &* +@all\n")
    command = [str(program), "--port", "0", "--tls-port", str(server.port), "--bind", "127.0.0.1", "--save", ""]
    command += ["--dir", str(folder), "--aclfile", str(folder / "users.acl"), "--tls-cert-file", str(certificate)]
    command += ["--tls-key-file", str(key), "--tls-ca-cert-file", str(authority.file), "--tls-auth-clients", "yes"]
    with (folder / "redis.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        eventually(lambda: _answers(server, process, folder / "redis.log"), what="Redis answers")
        yield server
    finally:
        process.terminate()
        process.wait(10)


def auditor(server: Server) -> redis.Redis:
    """Return a client of the user `auditor`, who has all permissions."""
    key, certificate = server.client
    tls = {"ssl_ca_certs": str(server.authority.file), "ssl_certfile": str(certificate), "ssl_keyfile": str(key)}
    return redis.Redis(port=server.port, host="127.0.0.1", username="auditor", password="auditor", ssl=True, **tls)  # type: ignore[arg-type]


def refusals(client: redis.Redis) -> list[str]:
    """Return a line for each command that the server's ACLs denied."""
    return [f"{entry['username']}: {entry['reason']} {entry['object']}" for entry in client.acl_log()]


@contextmanager
def rabbitmq_with_tls(
    folder: Path, authority: Authority, vhost: str, users: Mapping[str, tuple[str, Sequence[str]]]
) -> Iterator[Server]:
    """Run a RabbitMQ node with TLS.

    Args:
        folder: Folder of the node's files.
        authority: Authority of the certificates.
        vhost: Name of the only virtual host.
        users: Password of each user, and the patterns of the permissions to configure, write and read.
    """
    key, certificate = authority.issue("rabbitmq", "127.0.0.1")
    server = Server(free_port(), authority, authority.issue("client"))
    (folder / "definitions.json").write_text(json.dumps(_definitions(vhost, users)))
    lines = {
        "listeners.tcp": "none",
        "listeners.ssl.1": f"127.0.0.1:{server.port}",
        "ssl_options.cacertfile": authority.file,
        "ssl_options.certfile": certificate,
        "ssl_options.keyfile": key,
        "ssl_options.verify": "verify_peer",
        "ssl_options.fail_if_no_peer_cert": "true",
        "load_definitions": folder / "definitions.json",
    }
    with rabbitmq_node(folder, server.port, lines):
        yield server


def _definitions(vhost: str, users: Mapping[str, tuple[str, Sequence[str]]]) -> dict[str, object]:
    """Return the definitions that RabbitMQ loads at its start."""
    permissions = []
    for name, (_, patterns) in users.items():
        configure, write, read_pattern = patterns
        permissions.append({"user": name, "vhost": vhost, "configure": configure, "write": write, "read": read_pattern})
    hash_result = {
        name: base64.b64encode(SALT + hashlib.sha256(SALT + password.encode()).digest()).decode()
        for name, (password, _) in users.items()
    }
    user_fields = {"hashing_algorithm": "rabbit_password_hashing_sha256", "tags": ""}
    return {
        "users": [{"name": name, "password_hash": password, **user_fields} for name, password in hash_result.items()],
        "vhosts": [{"name": vhost}],
        "permissions": permissions,
    }


def built_with_tls() -> Path:
    """Return a redis-server on PATH with TLS support, because the bundled server has none."""
    for folder in os.get_exec_path():
        program = Path(folder) / "redis-server"
        if program.exists():
            # a server with TLS support exits with an error that names the missing option
            result = subprocess.run([program, "--port", "0", "--tls-port", "1"], capture_output=True, check=False)
            if b"tls-cert-file" in result.stdout:
                return program
    return skip_without("redis-server with TLS")


def _answers(server: Server, process: subprocess.Popen[bytes], log: Path) -> bool:
    assert process.poll() is None, log.read_text()
    try:
        with auditor(server) as client:
            return bool(client.ping())
    except redis.ConnectionError:
        return False
