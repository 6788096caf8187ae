"""File with the addresses of a running fleet, by which the commands of an app find the fleet that ``dev`` has started.

The file belongs to one app: the app's name, in the folder in which ``dev`` was started. The supervisor locks the file
as long as it runs. A file without a lock was left by a supervisor that SIGKILL ended.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path

from celery import Celery

from ...errors import ConfigError

RUNTIME_FOLDER = "XDG_RUNTIME_DIR"
NAME = "a2a-celery"

OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW
CREATE_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW


@dataclass(frozen=True, slots=True)
class DevAddresses:
    """Addresses of a running fleet.

    Attributes:
        url: Address of the gateway.
        grpc_port: Port for gRPC, or None.
        variables: Variables of the fleet's processes that select its store and broker, and its settings.
    """

    url: str
    grpc_port: int | None
    variables: Mapping[str, str]


class StaleAddresses(ConfigError):
    """Error for a file of a supervisor that no longer runs. The file has been removed."""


class AddressFile:
    """Address file of the app `app` in the project folder `folder`.

    Attributes:
        path: Path of the file in a private folder of the user. The file need not exist.
    """

    def __init__(self, app: Celery, folder: Path) -> None:
        identity = f"{folder.resolve()}\0{app.main or ''}"
        base = os.environ.get(RUNTIME_FOLDER, "")
        is_usable = os.path.isabs(base) and os.path.isdir(base)
        self._folder = Path(base, NAME) if is_usable else Path(tempfile.gettempdir(), f"{NAME}-{os.getuid()}")
        self.path = self._folder / f"{sha256(identity.encode()).hexdigest()[:32]}.json"
        self._fd: int | None = None

    def write(self, addresses: DevAddresses) -> bool:
        """Write and lock the file, which replaces a file without a lock.

        Returns:
            False if another supervisor holds the file.

        Raises:
            ConfigError: The folder is not private, or the file cannot be written.
        """
        with suppress(StaleAddresses):
            if self.read() is not None:
                return False
        temporary = self.path.with_suffix(f".{os.getpid()}")
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            self._require_private_folder()
            fd = os.open(temporary, CREATE_FILE, 0o600)
            fcntl.flock(fd, fcntl.LOCK_EX)
            with open(fd, "w", encoding="utf-8", closefd=False) as file:
                json.dump(asdict(addresses), file)
            temporary.replace(self.path)
        except OSError as e:
            raise ConfigError(f"{e.filename or self._folder}: {e.strerror}") from e
        self._fd = fd
        return True

    def remove(self) -> None:
        """Remove the file if this object has written it."""
        if self._fd is None:
            return
        with suppress(OSError):
            self._unlink(self._fd)
        os.close(self._fd)
        self._fd = None

    def read(self) -> DevAddresses | None:
        """Return the addresses, or None if there is no file.

        Raises:
            StaleAddresses: The supervisor that wrote the file no longer runs.
            ConfigError: The folder or the file is not private, or the file is unreadable.
        """
        try:
            self._require_private_folder()
            fd = os.open(self.path, OPEN_FILE)
            try:
                _require_private(os.fstat(fd), self.path, stat.S_ISREG)
                self._require_lock(fd)
                with open(fd, encoding="utf-8", closefd=False) as file:
                    return DevAddresses(**json.load(file))
            finally:
                os.close(fd)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as e:
            raise ConfigError(f"{self.path}: {getattr(e, 'strerror', None) or 'not a file of a2a dev'}") from e

    def _require_lock(self, fd: int) -> None:
        """Remove the file `fd`, and raise StaleAddresses, if no supervisor holds a lock on the file."""
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        self._unlink(fd)
        raise StaleAddresses(f"a2a dev of this app was killed and left {self.path}: its addresses are ignored")

    def _unlink(self, fd: int) -> None:
        """Remove the file, unless another supervisor has replaced the file that is open as `fd`."""
        if os.path.samestat(self.path.lstat(), os.fstat(fd)):
            self.path.unlink()

    def _require_private_folder(self) -> None:
        # in a temporary folder with the sticky bit, other users cannot replace the folder after this check
        _require_private(self._folder.lstat(), self._folder, stat.S_ISDIR)


def _require_private(status: os.stat_result, path: Path, is_kind: Callable[[int], bool]) -> None:
    if not is_kind(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise ConfigError(f"{path} is not a private file or folder of this user: remove it")
