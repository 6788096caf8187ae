"""``celery -A … a2a doctor``: looks at the installation, and says what to change."""

from __future__ import annotations

import click

from .diagnosis import diagnosis
from .location import prepared
from .survey import survey


@click.command()
@click.option("--url", help="The gateway. Not given: A2A_PUBLIC_URL, a2a_public_url, else the usual port here.")
@click.option("--timeout", default=2.0, show_default=True, help="Seconds that workers have to answer.")
@click.option("--json", "as_lines", is_flag=True, help="A line of JSON for each finding.")
@click.pass_context
def doctor(context: click.Context, url: str | None, timeout: float, as_lines: bool) -> None:
    """Say what is right here and what isn't.

    A line each about store, broker, workers, watchers, settings and gateway. Exit code 1 if
    something is wrong. It asks as the app is set up here: run it where a worker or a gateway would run.
    """
    findings = diagnosis(survey(prepared(context), url, timeout))
    for finding in findings:
        click.echo(finding.as_json() if as_lines else str(finding))
    wrong = sum(finding.level == "wrong" for finding in findings)
    notes = sum(finding.level == "note" for finding in findings)
    if not as_lines:
        click.echo(f"{wrong or 'nothing'} wrong, {notes or 'no'} note{'' if notes == 1 else 's'}")
    context.exit(1 if wrong else 0)
