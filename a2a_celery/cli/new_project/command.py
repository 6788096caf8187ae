"""``a2a-celery init``: an app with an agent, its test, and the files to deploy and check it."""

from __future__ import annotations

import json
import keyword
import re
import shlex
import sys
from collections.abc import Iterator
from importlib.metadata import distribution
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import click

from ... import __version__

TARGETS = {
    "agents.py.txt": "{module}.py",
    "test_agents.py.txt": "test_{module}.py",
    "pyproject.toml.txt": "pyproject.toml",
    "requirements.txt": "requirements.txt",
    "requirements-dev.txt": "requirements-dev.txt",
    "Dockerfile.txt": "Dockerfile",
    "compose.yaml.txt": "compose.yaml",
    "ci.yml.txt": ".github/workflows/ci.yml",
    "gitignore.txt": ".gitignore",
    "README.md.txt": "README.md",
}
"""Paths of the project's files, by template. The suffix .txt keeps tools from processing the templates."""

WHEELS_NOTE = """Until a2a-celery is released, the project installs it from the folder `wheels`. Commit the folder,
because CI and the image need it. To build the wheel, replace CHECKOUT by the path of a checkout of a2a-celery:

```sh
pip wheel --no-deps --wheel-dir wheels CHECKOUT
```

"""
"""Section of the README of a project that installs this package from a wheel. Other readers of the README have their
checkout in another place, so the section contains no path."""


_NAME = re.compile(r"[a-z][a-z0-9]*(?:__?[a-z0-9]+)*")
"""Names that are valid for a Python module and in the reference of an image."""


@click.command()
@click.argument("folder", metavar="NAME", type=click.Path(path_type=Path, file_okay=False))
def init(folder: Path) -> None:
    """Write a project to start from into the folder NAME.

    The project has an app with an agent, its test, files for Docker Compose and CI, and a README. The app's module has
    the name of the folder. A folder that contains files is refused. If this package was installed from a checkout, the
    project installs it from a wheel in its folder "wheels".
    """
    module = _module_name(folder)
    source = source_of(distribution("a2a-celery").read_text("direct_url.json"))
    try:
        if folder.exists() and any(folder.iterdir()):
            raise click.ClickException(f"{folder} is not empty: name a new folder")
        for target, text in project_files(module, released=source is None):
            path = folder / target
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except OSError as e:
        raise click.ClickException(f"{e.filename or folder}: {e.strerror}") from e
    click.echo(f"wrote {len(TARGETS)} files to {folder}; next, in that folder:")
    if source is not None:
        click.echo(f"  pip wheel --no-deps --wheel-dir wheels {shlex.quote(source)}    # instead of a release")
    click.echo("  pip install -r requirements-dev.txt && pytest")
    click.echo(f"  celery -A {module} a2a dev")
    click.echo('  a2a-celery call http://localhost:8000 "Hi"    # in another terminal')


def project_files(module: str, *, released: bool) -> Iterator[tuple[str, str]]:
    """Yield the path and the text of each file of a project whose app is in `module`.

    Args:
        module: Name of the app's module.
        released: False if pip finds this package only in the project's folder "wheels".
    """
    values = {
        "module": module,
        "version": __version__,
        "find_links": "" if released else "--find-links wheels\n",
        "copy_wheels": "" if released else "COPY wheels ./wheels/\n",
        "wheels_note": "" if released else WHEELS_NOTE,
    }
    templates = files(__package__) / "template"
    for template, target in TARGETS.items():
        text = (templates / template).read_text(encoding="utf-8")
        for name, value in values.items():
            text = text.replace(f"{{{{{name}}}}}", value)
        yield target.format(module=module), text


def source_of(direct_url: str | None) -> str | None:
    """Return the argument of ``pip wheel`` for the place that this package was installed from, or None for an index.

    Args:
        direct_url: The installation's ``direct_url.json``, or None if it has none.

    Source: PEP 610.
    """
    if direct_url is None:
        return None
    origin = json.loads(direct_url)
    url: str = origin["url"]
    if "vcs_info" in origin:
        return f"{origin['vcs_info']['vcs']}+{url}@{origin['vcs_info']['commit_id']}"
    return url2pathname(urlsplit(url).path) if url.startswith("file:") else url


def _module_name(folder: Path) -> str:
    """Return the name of the app's module.

    Raises:
        click.BadParameter: The name is not valid for a module or an image, or is the name of an installed module.
    """
    module = folder.resolve().name.replace("-", "_").lower()
    if _NAME.fullmatch(module) is None or keyword.iskeyword(module):
        raise click.BadParameter(
            f"{module!r} is not a name for a Python module and an image, such as my_agents", param_hint="NAME"
        )
    if module in sys.stdlib_module_names or module == "test" or find_spec(module) is not None:
        raise click.BadParameter(f"{module!r} is the name of an installed Python module", param_hint="NAME")
    return module
