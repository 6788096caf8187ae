"""Completeness of docs/reference/http-api.md, whose operations and messages are generated from the OpenAPI document."""

from __future__ import annotations

import json
import re
from types import ModuleType

import pytest

from a2a_celery.gateway.discovery import CATALOG_PATHS, CATALOG_VERSION
from a2a_celery.gateway.openapi.document import openapi_document
from tests.support import ROOT
from tests.support.docs_modules import load_docs_module

PAGE = (ROOT / "docs" / "reference" / "http-api.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def http_api() -> ModuleType:
    return load_docs_module("http_api")


def test_the_page_describes_each_operation_and_each_message(http_api: ModuleType) -> None:
    document = openapi_document("", ["echo"])
    page = http_api.with_operations(PAGE)
    headings = re.findall(r"^### (\w+)$", page, re.MULTILINE)
    requests = re.findall(r"^```http\n(\w+) (\S+)\n```$", page, re.MULTILINE)

    operations = {
        (verb.upper(), path): item[verb]["operationId"]
        for path, item in document["paths"].items()
        for verb in ("get", "post", "delete")
        if verb in item and not path.startswith("/{tenant}")
    }
    assert dict(zip(requests, headings, strict=False)) == operations
    assert sorted(headings[len(operations) :]) == sorted(document["components"]["schemas"])


def test_each_link_of_the_generated_part_has_its_heading(http_api: ModuleType) -> None:
    page = http_api.with_operations(PAGE)
    headings = {heading.lower() for heading in re.findall(r"^### (\w+)$", page, re.MULTILINE)}

    links = set(re.findall(r"\]\(#(\w+)\)", page))

    assert links
    assert links <= headings


def test_the_page_names_the_operations_that_are_not_in_the_specification() -> None:
    text = PAGE.partition("A2A does not define the operations")[2].partition("\n\n")[0]
    items = openapi_document("", ["echo"])["paths"].items()
    extra_names = {
        operation["operationId"]
        for path, item in items
        for operation in item.values()
        if isinstance(operation, dict) and operation.get("tags") == ["Extra"] and not path.startswith("/{tenant}")
    }

    assert set(re.findall(r"`(\w+)`", text)) == {"SendSignal", "GetTaskFamily", "ListAgents"}
    assert {name for name in extra_names if "Webhook" not in name} == {
        *re.findall(r"`(\w+)`", text),
        "SubscribeToTaskByPost",
    }


def test_the_catalog_of_the_page_has_the_form_of_the_schema() -> None:
    [catalog] = re.findall(r"^```json\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    schemas = openapi_document("", ["echo"])["components"]["schemas"]

    assert json.loads(catalog)["specVersion"] == CATALOG_VERSION
    assert list(json.loads(catalog)["entries"][0]) == list(schemas["CatalogEntry"]["properties"])
    assert all(f"`{path}`" in PAGE or f"`GET {path}`" in PAGE for path in CATALOG_PATHS)
