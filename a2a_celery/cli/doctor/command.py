"""``celery -A … a2a doctor``: checks an installation and suggests changes.

To add a check, write a function in one of the modules ``*_checks`` and add the function to `CHECKS`. The JSON output
identifies a check by the name of its function.
"""

from __future__ import annotations

from dataclasses import replace

import click

from ..app_loader import load_configured_a2a
from ..output import wrap_text
from . import broker_checks, deployment_checks, store_checks, worker_checks
from .survey import Check, Finding, Survey, survey

CHECKS: tuple[Check, ...] = (
    deployment_checks.configuration,
    store_checks.store,
    store_checks.memory,
    store_checks.storage,
    broker_checks.broker,
    broker_checks.timeouts,
    worker_checks.workers,
    worker_checks.versions,
    worker_checks.agents,
    worker_checks.agent_versions,
    worker_checks.imports,
    worker_checks.results,
    worker_checks.cancelling,
    worker_checks.events,
    deployment_checks.watchers,
    deployment_checks.secrets,
    deployment_checks.signing_keys,
    deployment_checks.webhooks,
    deployment_checks.dead_letters,
    deployment_checks.same_settings,
    store_checks.clocks,
    deployment_checks.gateway,
)


def diagnosis(survey: Survey) -> list[Finding]:
    """Run all checks and return their findings."""
    return [replace(finding, check=check.__name__) for check in CHECKS for finding in check(survey)]


@click.command()
@click.option("--url", help="The gateway. Default: A2A_PUBLIC_URL, a2a_public_url, or http://127.0.0.1:8000.")
@click.option("--timeout", default=2.0, show_default=True, help="Seconds to wait for workers' replies.")
@click.option("--json", "as_lines", is_flag=True, help="Print one line of JSON per finding.")
@click.pass_context
def doctor(context: click.Context, url: str | None, timeout: float, as_lines: bool) -> None:
    """Check this installation.

    Prints findings about the store, the broker, workers, watchers, settings and the gateway. The exit code is 1 if
    something is wrong. The checks use this machine's settings: run the command where a worker or a gateway would run.
    """
    findings = diagnosis(survey(load_configured_a2a(context), url, timeout))
    for finding in findings:
        click.echo(finding.as_json() if as_lines else wrap_text(str(finding), " " * 7))
    wrong = sum(finding.level == "wrong" for finding in findings)
    notes = sum(finding.level == "note" for finding in findings)
    if not as_lines:
        click.echo(f"{wrong or 'nothing'} wrong, {notes or 'no'} note{'' if notes == 1 else 's'}")
    context.exit(1 if wrong else 0)
