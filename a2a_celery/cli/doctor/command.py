"""``celery -A … a2a doctor``: checks an installation and suggests changes."""

from __future__ import annotations

import click

from ..app_loader import dev_url, load_configured_a2a
from ..output import wrap_text
from .checks import diagnosis
from .survey import survey


@click.command()
@click.option(
    "--url",
    help="The gateway. Default: A2A_PUBLIC_URL, a2a_public_url, the gateway of a2a dev, or http://127.0.0.1:8000.",
)
@click.option("--timeout", default=2.0, show_default=True, help="Seconds to wait for workers' replies.")
@click.option("--json", "as_lines", is_flag=True, help="Print one line of JSON per finding.")
@click.pass_context
def doctor(context: click.Context, url: str | None, timeout: float, as_lines: bool) -> None:
    """Check this installation.

    Prints findings about the store, the broker, workers, watchers, settings and the gateway. The exit code is 1 if
    something is wrong. The checks use this machine's settings: run the command where a worker or a gateway would run.
    """
    a2a = load_configured_a2a(context)
    if url is None and a2a.settings.public_url is None:
        url = dev_url(a2a.celery)
    findings = diagnosis(survey(a2a, url, timeout))
    for finding in findings:
        click.echo(finding.as_json() if as_lines else wrap_text(str(finding), " " * 7))
    wrong = sum(finding.level == "wrong" for finding in findings)
    notes = sum(finding.level == "note" for finding in findings)
    if not as_lines:
        click.echo(f"{wrong or 'nothing'} wrong, {notes or 'no'} note{'' if notes == 1 else 's'}")
    context.exit(1 if wrong else 0)
