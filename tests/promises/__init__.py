"""Ledger of promises: which tests hold each row and bullet of the pages that promise something.

A promise's id is ``page/section/first-words``, derived from its Markdown by `pages.promises`. Each module of this
package maps the ids of one page to the tests that hold them. A test holds a promise if it fails when the code breaks
the promise. `tests.architecture.test_promises` checks the ledger against the pages and the tests.
"""

from __future__ import annotations

from collections.abc import Mapping

from . import authentication, durable_work, guarantees, limits, retention, webhooks

LEDGER: Mapping[str, tuple[str, ...]] = {
    **authentication.PROMISES,
    **durable_work.PROMISES,
    **guarantees.PROMISES,
    **limits.PROMISES,
    **retention.PROMISES,
    **webhooks.PROMISES,
}
"""The tests that hold each promise, as pytest node ids below tests/ without parameters."""

STATEMENTS: Mapping[str, str] = {
    **authentication.STATEMENTS,
    **durable_work.STATEMENTS,
    **guarantees.STATEMENTS,
    **limits.STATEMENTS,
    **retention.STATEMENTS,
    **webhooks.STATEMENTS,
}
"""Rows and bullets that promise nothing of this project, such as advice or the behavior of Redis, with the reason."""
