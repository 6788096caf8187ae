"""Private APIs of other libraries, in one module per library, with the versions against which they were checked.

A test in ``tests/architecture`` fails if another module uses a private API of a library.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from inspect import getmro, isclass
from types import FunctionType

from ..errors import ConfigError


@dataclass(frozen=True)
class Library:
    """Library whose private API this package uses.

    Attributes:
        requirement: Supported versions, as in pyproject.toml: "celery>=5.7.0,<6".
        checked: Version against which the private names were checked.
    """

    requirement: str
    checked: str

    @property
    def name(self) -> str:
        """Name of the distribution, such as "celery"."""
        return self.requirement.partition(">")[0].partition("[")[0]

    def require(self, owner: object, *names: str) -> None:
        """Check that a class or module still has some private names.

        Args:
            owner: Class or module of the library. For a class, names that only its methods use are accepted too.
            names: Private names that this package uses.

        Raises:
            ConfigError: A name is missing.
        """
        missing = [name for name in names if not _has(owner, name)]
        if missing:
            title = getattr(owner, "__qualname__", None) or getattr(owner, "__name__", repr(owner))
            raise ConfigError(
                f"{self.name} {version(self.name)} has no {title}.{missing[0]}, which a2a-celery uses: "
                f"install {self.requirement} (checked with {self.checked})"
            )


def base_in(cls: type, package: str) -> type:
    """Return the first class in the method resolution order of `cls` that belongs to `package`."""
    return next(base for base in getmro(cls) if base.__module__.partition(".")[0] == package)


def _has(owner: object, name: str) -> bool:
    if hasattr(owner, name):
        return True
    functions = (value for base in getmro(owner) for value in vars(base).values()) if isclass(owner) else ()
    return any(name in function.__code__.co_names for function in functions if isinstance(function, FunctionType))
