"""What the commands say of themselves."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from a2a_celery.cli.commands import a2a
from a2a_celery.cli.deliveries import deliveries


@pytest.mark.parametrize("group", [a2a, deliveries], ids=lambda group: group.name)
def test_each_commands_help_fits_its_line(group: click.Group) -> None:
    said = CliRunner().invoke(group, ["--help"], terminal_width=80)

    assert said.exit_code == 0
    assert "..." not in said.output.partition("Commands:")[2]
