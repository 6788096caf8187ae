"""Temporary SQL servers for tests, each with a temporary folder and a port of 127.0.0.1.

The programs come from Debian's packages (postgresql, mariadb-server) and refuse to run as root. If the tests run as
root, the servers run as the users that the packages create.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.support.processes.fleet import free_port
from tests.support.waiting import LIMIT, eventually

START = 60.0


class Postgres:
    """PostgreSQL server. `url` is for SQLAlchemy. The data survives `stop` and `start`."""

    package = "postgresql"

    @staticmethod
    def is_installed() -> bool:
        return program("initdb") != ""

    def __init__(self, folder: Path) -> None:
        self._data = folder / "data"
        self._folder = folder
        self._port = free_port()
        self.url = f"postgresql+asyncpg://archivist:secret-of-the-archive@127.0.0.1:{self._port}/postgres"
        password = folder / "password"
        password.write_text("secret-of-the-archive")
        set_owner("postgres", folder)
        # a natural-language collation, so that queries that compare bytes must name a collation
        sort_options = ("--locale", "C.UTF-8", "--locale-provider", "icu", "--icu-locale", "en-US")
        options = (
            "-D",
            self._data,
            "-U",
            "archivist",
            "--pwfile",
            password,
            "-A",
            "scram-sha-256",
            "-N",
            *sort_options,
        )
        self._run("initdb", *options)

    def start(self) -> None:
        """Start the server and wait until it responds."""
        settings = f"-p {self._port} -k {self._folder} -h 127.0.0.1 -c fsync=off"
        self._run("pg_ctl", "start", "-w", "-t", START, "-D", self._data, "-l", self._folder / "log", "-o", settings)

    def stop(self) -> None:
        """Stop the server immediately and close all connections."""
        with suppress(subprocess.CalledProcessError):
            self._run("pg_ctl", "stop", "-w", "-m", "immediate", "-D", self._data)

    def sql_dump(self) -> str:
        """Return the contents of the database as SQL."""
        dump = self._folder / "dump.sql"
        self._run("pg_dump", "-f", dump, self.url.replace("+asyncpg", ""))
        return dump.read_text()

    def _run(self, name: str, *arguments: object) -> None:
        run("postgres", [program(name), *map(str, arguments)])


def program(name: str) -> str:
    """Return the path of a PostgreSQL program, or "" if PostgreSQL is not installed. Debian installs the programs
    outside of PATH."""
    paths = [str(path) for path in Path("/usr/lib/postgresql").glob(f"*/bin/{name}")]
    return max(paths, default=shutil.which(name) or "")


class Maria:
    """MariaDB server without system tables, which take seconds to create. The server accepts any user and password.
    `url` is for SQLAlchemy."""

    package = "mariadb-server"

    @staticmethod
    def is_installed() -> bool:
        return shutil.which("mariadbd") is not None

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self._server: subprocess.Popen[bytes] | None = None
        self.url = f"mysql+aiomysql://archivist:secret-of-the-archive@127.0.0.1:{self._port}/archive"
        (folder / "data").mkdir()
        set_owner("mysql", folder)

    def start(self) -> None:
        """Start the server and wait until it responds."""
        first = self._folder / "first.sql"
        first.write_text("CREATE DATABASE IF NOT EXISTS archive;\n")
        options = {
            "datadir": self._folder / "data",
            "socket": self._folder / "socket",
            "pid-file": self._folder / "pid",
            "port": self._port,
            "bind-address": "127.0.0.1",
            "init-file": first,
            "skip-grant-tables": 1,
        }
        command = [
            "mariadbd",
            "--no-defaults",
            "--skip-name-resolve",
            *(f"--{name}={value}" for name, value in options.items()),
        ]
        with (self._folder / "log").open("ab") as log:
            self._server = subprocess.Popen(command, stdout=log, stderr=log, **as_user("mysql"))
        eventually(self._answers, what="MariaDB answers")

    def stop(self) -> None:
        """Stop the server."""
        if self._server is not None:
            self._server.terminate()
            self._server.wait(START)

    def _answers(self) -> bool:
        assert self._server is not None
        assert self._server.poll() is None, (self._folder / "log").read_text()[-3000:]
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
            return True
        return False


@contextmanager
def running_database(kind: type[Postgres] | type[Maria]) -> Iterator[Postgres | Maria]:
    """Run a temporary server."""
    folder = Path(tempfile.mkdtemp(prefix="a2a-sql-"))
    server: Postgres | Maria | None = None
    try:
        server = kind(folder)
        server.start()
        yield server
    finally:
        if server is not None:
            server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def as_user(user: str) -> dict[str, Any]:
    """Return options of `subprocess` that change the user from root to `user`, or {} if the tests do not run as root.

    ``runuser`` is not used, because it suspends itself when its command is suspended, and does not continue with it.
    """
    return {"user": user, "group": user, "extra_groups": []} if os.geteuid() == 0 else {}


def set_owner(user: str, folder: Path) -> None:
    """Make `user` the owner of the folder and the files in the folder if the tests run as root."""
    if os.geteuid() == 0:
        for path in (folder, *folder.iterdir()):
            shutil.chown(path, user)


def run(user: str, command: list[str]) -> None:
    """Run a command to completion. If the command fails, add the output to the error."""
    with tempfile.TemporaryFile() as output:  # a server that the command starts would keep a pipe open
        try:
            subprocess.run(command, check=True, stdout=output, stderr=output, cwd="/", timeout=LIMIT, **as_user(user))
        except subprocess.CalledProcessError as e:
            output.seek(0)
            e.add_note(output.read().decode(errors="replace")[-3000:])
            raise
