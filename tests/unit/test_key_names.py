"""Names of Redis keys. Ids are quoted, so that no id collides with a different id or leaves its namespace."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from a2a_celery.lifecycle.references import Scope, quote_key_part
from a2a_celery.store import Keys, TaskKeys

PLAIN = re.compile(r"[A-Za-z0-9_.~@%-]*")


SENDABLE = st.text(st.characters(exclude_categories=["Cs"]))


@given(SENDABLE, SENDABLE)
def test_different_texts_are_quoted_differently(first: str, second: str) -> None:
    assert PLAIN.fullmatch(quote_key_part(first))
    assert (quote_key_part(first) == quote_key_part(second)) == (first == second)


@pytest.mark.parametrize("task_id", ["plain-1", "a:b", "}:x{", "a b", "ü"])
def test_all_keys_of_a_task_share_its_hash_tag(task_id: str) -> None:
    names = Keys("p").task(task_id)

    tags = {re.match(r"p:\{([^{}]*)\}:[a-z]+:?$", name).group(1) for name in names}  # type: ignore[union-attr]
    assert tags == {quote_key_part(task_id)}


def test_scripts_take_every_key_of_a_task_in_the_order_of_its_fields() -> None:
    names = Keys().task("t")

    assert names == tuple(getattr(names, field) for field in TaskKeys._fields)
    assert len(set(names)) == len(TaskKeys._fields)


def test_prefixes_keep_deployments_apart() -> None:
    first, second = Keys("one"), Keys("other")

    assert not set(first.task("t")) & set(second.task("t"))
    assert (first.leases, first.dispatch, first.runner("r")) != (second.leases, second.dispatch, second.runner("r"))


def test_the_text_of_a_scope_is_unambiguous() -> None:
    assert str(Scope("a", "b/c", "d e")) == "a/b%2Fc/d%20e"
    assert str(Scope()) == "//"
