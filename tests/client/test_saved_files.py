"""Files of a response that a client saves. No file name escapes the folder, and no existing file is replaced."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from a2a.types import Artifact, Message, Part, Task

from a2a_celery.cli.client.saved_files import save_files
from a2a_celery.client import Result


def files_of(folder: Path, *parts: Part) -> dict[str, bytes]:
    """Save the parts of an artifact, and return the content of each file below the parent of `folder`."""
    save_files(Result(Task(artifacts=[Artifact(artifact_id="report", parts=parts)])), folder)
    files = [path for path in folder.parent.rglob("*") if path.is_file()]
    return {
        str(path.relative_to(folder)) if path.is_relative_to(folder) else "outside": path.read_bytes() for path in files
    }


@pytest.mark.parametrize(
    ("filename", "name"),
    [
        ("report.pdf", "report.pdf"),
        ("../../etc/passwd", "passwd"),
        ("..\\..\\boot.ini", "boot.ini"),
        ("/etc/passwd", "passwd"),
        ("..", "file"),
        (".bashrc", "bashrc"),
        ("\u200b.bashrc", "bashrc"),
        ("a/\ufeff.npmrc", "npmrc"),
        (".\u00ad. .pdbrc", "pdbrc"),
        ("\u200b..", "file"),
        ("folder/", "file"),
        ("a\0b\x1b[2J\n.txt", "a_b_[2J_.txt"),
        ("C:stream", "C_stream"),
        ("x" * 300 + ".tar", "x" * 150 + ".tar"),
        ("報告書" * 30 + ".pdf", "報告書" * 16 + "報告.pdf"),
        ("報告書" * 30 + "." + "書" * 17, "報告書" * 16 + "報告"),
        ("𝄞" * 300 + "." + "𝄞" * 15, "𝄞" * 37 + "." + "𝄞" * 15),
        ("ü.pdf", "ü.pdf"),
    ],
)
def test_a_name_stays_in_the_folder(filename: str, name: str, tmp_path: Path) -> None:
    assert files_of(tmp_path / "out", Part(raw=b"1", filename=filename)) == {name: b"1"}


def test_a_file_without_a_name_is_named_for_its_artifact(tmp_path: Path) -> None:
    image, other = Part(raw=b"1", media_type="image/png"), Part(raw=b"2")

    assert files_of(tmp_path / "out", image, other) == {"report.png": b"1", "report": b"2"}


def test_no_file_is_replaced_and_no_link_followed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "a.txt").symlink_to(tmp_path / "elsewhere")
    (folder / "a-2.txt").write_bytes(b"mine")

    paths = files_of(folder, *(Part(raw=content, filename="a.txt") for content in (b"1", b"22")))

    assert paths == {"a-2.txt": b"mine", "a-3.txt": b"1", "a-4.txt": b"22"}
    assert capsys.readouterr().err.splitlines() == [
        f"saved {folder / 'a-3.txt'} (1 bytes)",
        f"saved {folder / 'a-4.txt'} (2 bytes)",
    ]


def test_only_files_are_saved(tmp_path: Path) -> None:
    text, link = Part(text="hello", filename="a.txt"), Part(url="https://example.com/b.txt", filename="b.txt")
    save_files(Result(Message(parts=[text, link, Part(raw=b"c", filename="c.txt")])), tmp_path)

    assert [path.name for path in tmp_path.iterdir()] == ["c.txt"]


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")

    with pytest.raises(click.ClickException, match="taken: "):
        files_of(tmp_path / "taken", Part(raw=b"1", filename="a.txt"))
