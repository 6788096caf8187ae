"""URLs in the settings. An error for an invalid URL never contains a password."""

from __future__ import annotations

import re

import pytest

from a2a_celery.errors import ConfigError
from a2a_celery.settings import Settings
from a2a_celery.settings.loading import load_settings
from a2a_celery.store.client.redis_clients import async_client, sync_client

REDIS = "redis://host/0"


@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("a2a_store_url", "redis://:s3cret\u2100@host/0"),
        ("a2a_store_url", "redis://:1#s3cret@host/0"),
        ("a2a_store_url", "redis://:s3cret@[host/0"),
        ("a2a_store_url", "sentinel://:s3cret\u2100@host/0?master_name=m"),
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
        load_settings({"a2a_store_url": REDIS, name: url}, {})

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
@pytest.mark.parametrize("name", ["public_url", "cors_origins"])
def test_an_address_for_clients_is_a_valid_url_without_a_password(name: str, url: str) -> None:
    with pytest.raises(ConfigError, match=rf"a2a_{name} = .*: must ") as exc_info:
        Settings(store_url=REDIS, **{name: [url] if name == "cors_origins" else url})

    assert "s3cret" not in str(exc_info.value)


@pytest.mark.parametrize(
    ("url", "rule"),
    [
        ("redis://host/0?decode_responses=true", "must not have the option decode_responses; known: client_name,"),
        ("redis://host/0?decode_responses=false", "must not have the option decode_responses; known:"),
        ("redis://host/0?foo=1", "must not have the option foo; known:"),
        ("redis://host/0?foo=", "must not have the option foo; known:"),
        ("valkey://host/0?single_connection_client=true", "must not have the option single_connection_client; known:"),
        ("unix:///run/redis.sock?db=1&retry_on_error=1", "must not have the option retry_on_error; known:"),
        ("redis://host/0?timeout=5", "must not have the option timeout; known:"),
        ("redis://host/0?legacy_responses=false", "must not have the option legacy_responses; known:"),
        (
            "redis://host/0?ssl_cert_reqs=none",
            "must begin with rediss://, valkeys:// or sentinels:// to have the option ssl_cert_reqs",
        ),
        ("rediss://host/0?ssl_foo=1", "must not have the option ssl_foo; known:"),
        ("rediss://host/0?ssl_cert_reqs=never", "must have none, optional or required as its ssl_cert_reqs"),
        ("redis://host/0?max_connections=1", "must have a number from 2 as its max_connections"),
        ("redis://host/0?max_connections=many", "must have a number from 2 as its max_connections"),
        ("redis://host/0?socket_timeout=soon", "must have a number of seconds as its socket_timeout"),
        ("redis://host/0?encoding=utf-8", "must not have the option encoding; known:"),
    ],
)
@pytest.mark.parametrize("name", ["a2a_store_url", "result_backend"])
def test_an_option_of_the_store_that_cannot_be_honoured_is_refused(name: str, url: str, rule: str) -> None:
    with pytest.raises(ConfigError, match=f"^a2a_store_url = ….*: {re.escape(rule)}"):
        load_settings({name: url}, {})


@pytest.mark.parametrize(
    "url", ["redis://:1?s3cret@host/0", "redis://host/0?S3CRET-x=1", "redis://host/0?username=&a=s3cret"]
)
def test_an_error_about_an_option_contains_no_secret(url: str) -> None:
    with pytest.raises(ConfigError) as exc_info:
        load_settings({"a2a_store_url": url}, {})

    assert "s3cret" not in str(exc_info.value).lower()


@pytest.mark.parametrize(
    "options",
    [
        "protocol=3",
        "socket_timeout=2.5&socket_connect_timeout=1",
        "health_check_interval=5&retry_on_timeout=true&socket_keepalive=yes",
        "client_name=a2a&max_connections=2",
        "ssl_cert_reqs=CERT_NONE&ssl_check_hostname=false",
        "ssl_ca_certs=%2Fetc%2Fca.pem&ssl_min_version=771",
    ],
)
def test_the_options_of_redis_py_for_connections_are_accepted(options: str) -> None:
    scheme = "rediss" if "ssl_" in options else "redis"
    url = f"{scheme}://host/0?{options}"

    assert Settings(store_url=url).store_url == url
    async_client(url)
    sync_client(url)
