"""URLs in the settings. An error for an invalid URL never contains a password."""

from __future__ import annotations

from typing import Any

import pytest

from a2a_celery.errors import ConfigError
from a2a_celery.settings import Settings
from a2a_celery.settings.loading import load_settings

REDIS = "redis://host/0"


@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("a2a_store_url", "redis://:s3cret\u2100@host/0"),
        ("a2a_store_url", "redis://:1#s3cret@host/0"),
        ("a2a_store_url", "redis://:s3cret@[host/0"),
        ("a2a_store_url", "sentinel://:s3cret\u2100@host/0?master_name=m"),
        ("broker_url", "redis://:s3cret\u2100@host/0"),
        ("broker_url", "sentinel://host;sentinel://:s3cret\u2100@host/0?master_name=m"),
        ("a2a_archive_url", "postgresql+asyncpg://:s3cret\u2100@host/database"),
        ("a2a_blob_url", "s3://:s3cret\u2100@bucket/folder"),
        ("a2a_archive_url", "postgresql+asyncpg://me:s3cret/x@host/database"),
        ("a2a_archive_url", "mysql+aiomysql://me:1#s3cret@host/database"),
        ("a2a_blob_url", "sftp://me:s3cret/x@host/folder"),
        ("a2a_blob_url", "sftp://me:1/s3cret@host/folder"),
    ],
)
def test_a_url_that_cannot_be_parsed_is_refused_without_its_password(name: str, url: str) -> None:
    with pytest.raises(ConfigError, match=r"^a2a_(store|archive|blob)_url = …: must ") as exc_info:
        load_settings({"a2a_store_url": "" if name == "broker_url" else REDIS, name: url}, {})

    assert "s3cret" not in str(exc_info.value)


@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("archive_url", "postgresql+asyncpg://me:s3cret#1@host/database"),
        ("archive_url", "postgresql+asyncpg://host:5432/database?user=me@server"),
        ("blob_url", "sftp://me:s3cret/x@host/folder"),
    ],
)
def test_an_error_says_that_a_password_must_be_percent_encoded(name: str, url: str) -> None:
    with pytest.raises(ConfigError, match=f"^a2a_{name} = …: must be a URL: percent-encode"):
        load_settings({"a2a_store_url": REDIS, f"a2a_{name}": url}, {})


def test_a_bucket_may_be_an_access_point() -> None:
    """s3fs accepts an ARN, whose colons are not followed by a port."""
    url = "s3://arn:aws:s3:eu-west-1:123456789012:accesspoint/blobs/folder"

    assert Settings(store_url=REDIS, blob_url=url).blob_url == url


@pytest.mark.parametrize(
    "name",
    ["CELERY_BROKER_URL", "broker_url", "result_backend", "broker_read_url", "CELERY_BROKER_WRITE_URL"],
)
@pytest.mark.parametrize(
    "url", ["amqp://me:s3cret/x@host//", "redis://:1/s3cret@host/0", "redis://host;redis://:s3cret\u2100@host"]
)
def test_a_broker_url_that_cannot_be_parsed_is_refused_without_its_password(name: str, url: str) -> None:
    urls = {name: url}

    with pytest.raises(ConfigError, match=f"^{name} = …: must be a URL: percent-encode") as exc_info:
        load_settings({"a2a_store_url": REDIS} | urls, urls if name.isupper() else {})

    assert "s3cret" not in str(exc_info.value)


@pytest.mark.parametrize(
    "url",
    [
        "memory://",
        "amqp://guest@host:5671//;amqp://host2//",
        "redis+socket:///a.sock?virtual_host=1",
        "mongodb://host:27017,host2:27017/database",
        "azureservicebus://policy:a/key@namespace",
        "sqs://a:b%2Fc@",
        "amqp://me:s3cret@host:5672//;host2:5672",
        "amqp",
    ],
)
def test_the_broker_of_another_transport_is_accepted(url: str) -> None:
    assert load_settings({"a2a_store_url": REDIS, "broker_url": url}, {}).store_url == REDIS


def test_a_result_backend_without_a_url_is_accepted() -> None:
    """Celery reads a name without :// as the name of a backend."""
    conf = {"broker_url": REDIS, "result_backend": "redis"}

    assert load_settings(conf, {}).store_url == REDIS


@pytest.mark.parametrize("url", ["http://[", "https://me:s3cret@agents.example.com"])
@pytest.mark.parametrize("name", ["public_url", "trace_url", "trusted_origins"])
def test_an_address_for_clients_is_a_valid_url_without_a_password(name: str, url: str) -> None:
    values: dict[str, Any] = {"trusted_origins": [url], "trace_url": f"{url}/{{trace_id}}"}

    with pytest.raises(ConfigError, match=rf"a2a_{name} = .*: must ") as exc_info:
        Settings(store_url=REDIS, **{name: values.get(name, url)})

    assert "s3cret" not in str(exc_info.value)
