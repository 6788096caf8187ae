"""Projects that ``a2a-celery init`` writes from a release or a checkout of a2a_celery."""

from __future__ import annotations

import json

import pytest

from a2a_celery import __version__
from a2a_celery.cli.new_project.command import project_files, source_of


def test_a_project_of_a_release_installs_from_an_index() -> None:
    files = dict(project_files("shop", released=True))

    assert files["requirements.txt"] == f"a2a-celery[fast]>={__version__}\n"
    assert [name for name, text in files.items() if "wheels" in text or "{{" in text] == []


def test_a_project_of_a_checkout_installs_a_wheel_in_its_folder() -> None:
    files = dict(project_files("shop", released=False))

    assert files["requirements.txt"] == f"--find-links wheels\na2a-celery[fast]>={__version__}\n"
    assert [name for name, text in files.items() if "wheels" in text] == ["requirements.txt", "Dockerfile", "README.md"]
    assert "pip wheel --no-deps --wheel-dir wheels CHECKOUT\n" in files["README.md"]
    lines = files["Dockerfile"].splitlines()
    assert lines.index("COPY wheels ./wheels/") == lines.index("COPY requirements.txt ./") + 1


@pytest.mark.parametrize(
    ("origin", "source"),
    [
        (None, None),
        ({"url": "file:///home/ann/a%20b", "dir_info": {}}, "/home/ann/a b"),
        (
            {"url": "file:///tmp/a2a_celery-0.2.0-py3-none-any.whl", "archive_info": {}},
            "/tmp/a2a_celery-0.2.0-py3-none-any.whl",
        ),
        (
            {"url": "https://example.com/a2a.git", "vcs_info": {"vcs": "git", "commit_id": "c0ffee"}},
            "git+https://example.com/a2a.git@c0ffee",
        ),
    ],
    ids=["index", "folder", "wheel", "git"],
)
def test_the_wheel_is_built_from_the_place_of_the_installation(origin: object, source: str | None) -> None:
    assert source_of(json.dumps(origin) if origin else None) == source
