"""Help texts of the commands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from a2a_celery.cli.commands import a2a
from a2a_celery.cli.main import main
from a2a_celery.cli.operator.selection import STATES, TIME_FORMATS
from a2a_celery.features.webhooks.command import deliveries

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("group", [a2a, deliveries], ids=lambda group: group.name)
def test_each_commands_help_fits_its_line(group: click.Group) -> None:
    # click leaves two columns of a terminal empty
    result = CliRunner().invoke(group, ["--help"], terminal_width=78)

    assert result.exit_code == 0
    assert "..." not in result.output.partition("Commands:")[2]


@pytest.mark.parametrize("name", sorted(a2a.commands))
def test_the_help_of_each_command_fits_80_columns(name: str) -> None:
    result = CliRunner().invoke(a2a, [name, "--help"], terminal_width=78)

    assert result.exit_code == 0
    assert [line for line in result.output.splitlines() if len(line) > 80] == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["gateway", "--port", "65536"],
        ["gateway", "--grpc-port", "65536"],
        ["gateway", "--workers", "0"],
        ["gateway", "--log-level", "loud"],
        ["watcher", "--metrics-port", "65536"],
        ["watcher", "--log-level", "loud"],
        ["dev", "--port", "65536"],
        ["dev", "--concurrency", "0"],
    ],
    ids=" ".join,
)
def test_an_option_with_an_impossible_value_is_refused(arguments: list[str]) -> None:
    result = CliRunner().invoke(a2a, arguments)

    assert result.exit_code == 2
    assert f"Invalid value for '{arguments[1]}'" in result.output


@pytest.mark.parametrize(
    ("group", "arguments"),
    [
        (a2a, ["get", "\udcff", "--store"]),
        (a2a, ["deliveries", "list", "--task", "\udcff"]),
        (a2a, ["\udcff"]),
        (main, ["call", "http://127.0.0.1:1", "\udcff"]),
    ],
)
def test_an_argument_that_is_not_utf_8_is_refused(group: click.Group, arguments: list[str]) -> None:
    result = CliRunner().invoke(group, arguments)

    assert (result.exit_code, result.stderr.splitlines()[-1]) == (
        2,
        r"Error: the argument '\xff' is not UTF-8: encode it as UTF-8",
    )


@pytest.mark.parametrize("name", ["list", "cancel"])
def test_the_help_names_each_state(name: str) -> None:
    output = CliRunner().invoke(a2a, [name, "--help"], terminal_width=78).output

    assert re.search(r"--state STATE +Only", output)
    assert set(STATES) <= set(re.findall(r"\w+", output))


@pytest.mark.parametrize("name", ["list", "cancel", "requeue"])
def test_the_help_explains_times(name: str) -> None:
    output = CliRunner().invoke(a2a, [name, "--help"]).output

    assert f"WHEN is {TIME_FORMATS}." in " ".join(output.split())


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("list", ", or of plain JSON with --all, --stuck or --schedule"),
        ("cancel", ", or of plain JSON with --all"),
        ("get", ", or of plain JSON with --tree or --execution"),
        ("tail", ""),
        ("send", ""),
    ],
)
def test_the_help_names_the_kind_of_json(name: str, plain: str) -> None:
    output = CliRunner().invoke(a2a, [name, "--help"]).output

    assert f"Print one line of ProtoJSON per event or task{plain}." in " ".join(output.split())


def test_each_operator_command_with_json_output_is_documented() -> None:
    page = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
    table = page.partition("| command | purpose |")[2].partition("\n\n")[0]
    names = set(re.findall(r"`(\w+)", "".join(row.split("|")[1] for row in table.splitlines()[2:])))
    commands = {name: a2a.commands[name] for name in names}
    commands |= {f"deliveries {name}": command for name, command in deliveries.commands.items()}

    assert "deliveries" in names
    assert "With `--json`, each command prints JSON lines" in " ".join(page.split())
    assert {
        name for name, command in commands.items() if not any("--json" in option.opts for option in command.params)
    } == set()


def documented_commands() -> Iterator[tuple[str, click.Command, list[str]]]:
    """Yield each command line in a ``sh`` block of README or docs, with its click command and its arguments."""
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for block in re.findall(r"^```sh\n(.*?)^```", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
            for line in block.splitlines():
                match = re.search(r"(?:^|&& )(celery -A \S+ a2a|a2a-celery) ([^|]+)$", line)
                if match is not None:
                    yield f"{path.name}: {line}", a2a if "-A" in match[1] else main, match[2].split()


def test_commands_and_options_of_the_docs_exist() -> None:
    count = 0
    for line, root, words in documented_commands():
        command = root
        while isinstance(command, click.Group) and words and words[0] in command.commands:
            command = command.commands[words.pop(0)]
        assert not isinstance(command, click.Group) or command.invoke_without_command, line
        options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
        option_names = {word.rstrip(",.;").partition("=")[0] for word in words if word.startswith("-")}
        assert option_names <= options, line
        count += 1
    assert count > 30
