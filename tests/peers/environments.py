"""Virtual environments of other A2A libraries, and of a framework whose pinned dependencies exclude other frameworks.
The files of this folder name the versions.

python -m tests.peers.environments
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
FOLDER = HERE.parents[1] / ".peers"
NODE = "node"
CREWAI = "crewai"
FILES = {
    "sdk-0.3": ("sdk-0.3.txt",),
    "sdk-1": ("sdk-1.txt",),
    CREWAI: ("crewai.txt",),
    NODE: ("node.txt", "package.json", "package-lock.json"),
}
"""Files that define the contents of each environment. The first file contains the requirements of its Python."""


def program(environment: str) -> str:
    """Return the path of the environment's Python or Node.js interpreter."""
    return str(FOLDER / environment / "bin" / ("node" if environment == NODE else "python"))


def is_installed(environment: str) -> bool:
    """Return True if the environment was installed from the current contents of its files."""
    stamp = _stamp(environment)
    return stamp.exists() and stamp.read_text() == _digest(environment)


def install(environment: str) -> None:
    """Delete the environment and install it again."""
    folder = FOLDER / environment
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    requirements, *others = FILES[environment]
    _run(environment, "pip", "install", "--quiet", "--no-compile", "--requirement", str(HERE / requirements))
    if others:
        _run(environment, "npm", "ci", "--no-audit", "--no-fund", "--loglevel=error")
    _stamp(environment).write_text(_digest(environment))


def _run(environment: str, command: str, *arguments: str) -> None:
    folder = FOLDER / environment / "bin"
    env: Mapping[str, str] = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    subprocess.run([str(folder / command), *arguments], check=True, cwd=HERE, env=env)


def _stamp(environment: str) -> Path:
    return FOLDER / environment / "installed"


def _digest(environment: str) -> str:
    return hashlib.sha256(b"".join((HERE / name).read_bytes() for name in FILES[environment])).hexdigest()


if __name__ == "__main__":
    missing = [name for name in FILES if not is_installed(name)]
    with ThreadPoolExecutor() as pool:
        list(pool.map(install, missing))
