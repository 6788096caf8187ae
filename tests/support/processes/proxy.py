"""TCP proxy that can close or stall connections."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from tests.support.processes.fleet import free_port

CHUNK = 65536


@dataclass
class _Pair:
    """Client and server sockets of a proxied connection. If `silent` is true, the connection discards all data."""

    client: socket.socket
    server: socket.socket
    silent: bool = False

    def pump(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(CHUNK):
                if not self.silent:
                    target.sendall(data)
        if not self.silent:  # a stalled connection does not report that the peer has closed it
            self.close()

    def close(self) -> None:
        for end in (self.client, self.server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


class Proxy:
    """Proxy on `port` of 127.0.0.1. `target` is (host, port) or the path of a Unix socket."""

    def __init__(self, target: tuple[str, int] | str) -> None:
        self._target = target
        self._pairs: list[_Pair] = []
        self._silent = False
        self.port = free_port()  # not a port for outgoing connections, which could take it while the proxy is cut
        self._listener = self._listen(self.port)

    def silence(self) -> None:
        """Discard all data without closing connections. Open connections are affected permanently, and new connections
        until `heal`."""
        self._silent = True
        for pair in self._pairs:
            pair.silent = True

    def heal(self) -> None:
        """Forward data on new connections again."""
        self._silent = False

    def cut(self) -> None:
        """Close all connections and refuse new connections until `restore`."""
        with suppress(OSError):  # close() alone does not end accept() in the other thread
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for pair in self._pairs:
            pair.close()
        self._pairs.clear()

    def restore(self) -> None:
        """Accept connections again at the same address."""
        self._listener = self._listen(self.port)

    def _listen(self, port: int) -> socket.socket:
        listener = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        return listener

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                with suppress(OSError):
                    pair = _Pair(client, self._connect(), self._silent)
                    self._pairs.append(pair)
                    for ends in ((pair.client, pair.server), (pair.server, pair.client)):
                        threading.Thread(target=pair.pump, args=ends, daemon=True).start()

    def _connect(self) -> socket.socket:
        if isinstance(self._target, str):
            server = socket.socket(socket.AF_UNIX)
            server.connect(self._target)
            return server
        return socket.create_connection(self._target)


@contextmanager
def proxy(target: tuple[str, int] | str) -> Iterator[Proxy]:
    """Run a proxy."""
    instance = Proxy(target)
    try:
        yield instance
    finally:
        instance.cut()
