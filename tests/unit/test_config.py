"""Settings: defaults, precedence, and errors that name the field."""

from __future__ import annotations

import base64
import codecs
import re
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from a2a_celery.errors import ConfigError
from a2a_celery.settings import REMOVED, Settings, default_of
from a2a_celery.settings.loading import load_settings, read_settings
from a2a_celery.settings.urls import SentinelAddress, url_address

REDIS = "redis://:s3cret@host/0"


def test_the_defaults_are_those_of_the_fields() -> None:
    settings = load_settings({"a2a_store_url": REDIS}, {})

    assert settings == Settings(store_url=REDIS)
    assert (settings.lease_ttl, settings.cancel_grace) == (15.0, 5.0)
    assert settings.retention == 604_800
    assert {f.name: default_of(f.name) for f in fields(Settings)} == {
        f.name: getattr(Settings(), f.name) for f in fields(Settings)
    }


def test_settings_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        Settings().lease_ttl = 1  # type: ignore[misc]


def test_the_configuration_of_the_app_wins_over_defaults() -> None:
    app = Celery("test", broker="amqp://")
    app.conf.a2a_store_url, app.conf.a2a_lease_ttl = REDIS, 3

    assert load_settings(app.conf, {}).lease_ttl == 3


def test_the_environment_wins_over_the_configuration() -> None:
    settings = load_settings(
        {"a2a_store_url": REDIS, "a2a_lease_ttl": 3, "a2a_cancel_grace": 2},
        {"A2A_LEASE_TTL": "4.5", "A2A_RETENTION": "60", "A2A_KEY_PREFIX": "other"},
    )

    assert (settings.lease_ttl, settings.cancel_grace, settings.retention) == (4.5, 2, 60)
    assert settings.key_prefix == "other"


@pytest.mark.parametrize("text", ["", "none", "None"])
def test_an_optional_setting_can_be_unset_by_the_environment(text: str) -> None:
    assert load_settings({"a2a_store_url": REDIS, "a2a_grpc_port": 1}, {"A2A_GRPC_PORT": text}).grpc_port is None


@pytest.mark.parametrize("text", ["", " "])
@pytest.mark.parametrize(
    "variable",
    [
        "A2A_AUTH_API_KEYS",
        "A2A_AUTH_API_KEYS_FILE",
        "A2A_AUTH_JWKS_URL",
        "A2A_AUTH_JWT_KEY",
        "A2A_AUTH_JWT_OWNER_CLAIM",
        "A2A_AUTH_JWT_TENANTS_CLAIM",
        "A2A_AUTH_IDENTITY_HEADER",
    ],
)
def test_an_empty_variable_does_not_disable_authentication(variable: str, text: str) -> None:
    with pytest.raises(ConfigError, match=f"(?i){variable}"):
        load_settings({"a2a_store_url": REDIS}, {variable: text})


@pytest.mark.parametrize(("text", "is_on"), [("1", True), ("on", True), ("True", True), ("0", False), ("off", False)])
def test_a_setting_that_is_on_or_off_is_a_word_in_the_environment(text: str, is_on: bool) -> None:
    assert load_settings({"a2a_store_url": REDIS}, {"A2A_UI": text}).ui is is_on


@pytest.mark.parametrize(("conf", "environ"), [({"a2a_ui": "on"}, {}), ({"a2a_ui": 1}, {}), ({}, {"A2A_UI": "maybe"})])
def test_other_words_are_refused(conf: dict[str, Any], environ: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"(?i)a2a_ui"):
        load_settings({"a2a_store_url": REDIS, **conf}, environ)


KEY = "a-key-for-the-tests-of-32-characters-and-more"


@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8])
def test_secrets_may_be_in_files(mark: bytes, tmp_path: Path) -> None:
    (tmp_path / "url").write_bytes(mark + f"{REDIS}\n".encode())
    (tmp_path / "key").write_bytes(mark + f"{KEY}\n{KEY[::-1]}\n".encode())
    environ = {"A2A_STORE_URL_FILE": str(tmp_path / "url"), "A2A_SECRET_KEY_FILE": str(tmp_path / "key")}

    settings = load_settings({"broker_url": "redis://broker"}, environ)

    assert settings.store_url == REDIS
    assert settings.secret_keys == (KEY.encode(), KEY[::-1].encode())


def test_an_empty_name_of_a_file_is_none() -> None:
    assert load_settings({"a2a_store_url": REDIS}, {"A2A_SECRET_KEY_FILE": ""}).secret_key is None


@pytest.mark.parametrize(
    ("content", "environ", "problem"),
    [
        (None, {}, "No such file"),
        (b"\n", {}, "the file is empty"),
        (b"\xff\xfe", {}, "the file is not UTF-8 text"),
        (KEY.encode(), {"A2A_SECRET_KEY": KEY}, "leave one out"),
    ],
)
def test_a_file_that_can_not_be_used_is_named(
    tmp_path: Path, content: bytes | None, environ: dict[str, str], problem: str
) -> None:
    path = tmp_path / "key"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(ConfigError, match=rf"A2A_SECRET_KEY_FILE .*{problem}") as exc_info:
        load_settings({"a2a_store_url": REDIS}, {"A2A_SECRET_KEY_FILE": str(path), **environ})

    assert KEY not in str(exc_info.value)


PRIVATE = "whsk_" + base64.b64encode(b"p" * 32).decode()
PUBLIC = "whpk_" + base64.b64encode(b"q" * 32).decode()


def test_keys_of_webhooks_may_be_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(f"{PRIVATE}\n{PRIVATE[:-1]}\n")
    environ = {"A2A_WEBHOOK_PRIVATE_KEY_FILE": str(tmp_path / "keys"), "A2A_SECRET_KEY": KEY}

    settings = load_settings({"a2a_store_url": REDIS}, environ)

    assert settings.webhook_private_keys == (PRIVATE, PRIVATE[:-1])
    assert PRIVATE not in repr(settings)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"webhook_private_key": PRIVATE}, "needs a2a_secret_key"),
        ({"webhook_private_key": PUBLIC}, "a private key for webhooks is whsk_"),
        ({"webhook_private_key": f"{PRIVATE} {PRIVATE}AAAA"}, "32 or 64 bytes"),
        ({"webhook_private_key": (), "secret_key": KEY}, "must be 1 to 10 keys, or None"),
        ({"webhook_private_key": [PRIVATE] * 11, "secret_key": KEY}, "must be 1 to 10 keys, or None"),
    ],
)
def test_keys_of_webhooks_that_can_not_be_used_are_refused_and_not_repeated(
    values: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError, match=f"a2a_{next(iter(values))}.*{problem}") as exc_info:
        Settings(store_url=REDIS, **values)

    assert PRIVATE not in str(exc_info.value)


BAD = [
    ("lease_ttl", 0),
    ("lease_ttl", -1),
    ("lease_ttl", 0.9),
    ("cancel_grace", 0),
    ("redispatch_after", 0),
    ("redispatch_after", 0.9),
    ("input_timeout", 0.9),
    ("cancel_grace", -0.1),
    ("retention", 0),
    ("max_request_bytes", 1023),
    ("key_prefix", ""),
    ("key_prefix", "a{b"),
    ("key_prefix", "a b"),
    ("grpc_port", 65536),
    ("grpc_port", -1),
    ("public_url", "example.com"),
    ("allowed_hosts", ("agents.example.com:8080",)),
    ("allowed_hosts", ("https://agents.example.com",)),
    ("cors_origins", ("chat.example.com",)),
    ("cors_origins", ("https://chat.example.com/",)),
    ("cors_origins", ("null",)),
    ("cors_origins", ("*", "https://chat.example.com")),
    ("cors_origins", ("https://*.example.com/",)),
    ("cors_origins", ("https://Chat.example.com",)),
    ("cors_origins", ("https://chat.example.com:443",)),
    ("cors_origins", ("https://chat.example.com:",)),
    ("cors_origins", ("https://chat.example.com?",)),
    ("public_url", "ftp://example.com"),
    ("public_url", "https://"),
    ("store_url", "amqp://s3cret@host"),
    ("store_wait_replicas", -1),
    ("lease_ttl", 1e300),
    ("input_timeout", 10**400),
    ("cancel_grace", 3153600001),
    ("retention", 3153600001),
    ("archive_retention", 3153600001),
    ("max_request_bytes", 2**31),
    ("task_max_bytes", 2**53),
    ("store_wait_replicas", 2**53),
    ("owner_requests_per_second", 1e-300),
    ("owner_requests_per_second", 1000001),
]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_a_bad_value_is_refused_with_its_field(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"a2a_{name} = .*: must be") as exc_info:
        Settings(**{"store_url": REDIS, name: value})

    assert "s3cret" not in str(exc_info.value)
    if name != "store_url":
        shown = list(value) if isinstance(value, tuple) else value
        assert repr(shown) in str(exc_info.value)


@pytest.mark.parametrize(
    ("url", "rule"),
    [
        ("sentinel://:s3cret@a:26379", "must have the option master_name: sentinel://host"),
        (
            "sentinel://a:26379/0;sentinel://b:26379/0?master_name=m",
            "must have a number as its database: sentinel://host",
        ),
        ("sentinel://a:26379;sentinel://b:26379", "must have a number as its database: sentinel://host"),
        ("sentinel://a:1;b:2?master_name=m", "must have hosts separated by commas"),
        ("sentinel://:s3cret@a/mymaster/0", "must have a number as its database"),
        ("sentinel://a/0?master_name=m#n", "must be a URL: percent-encode"),
        ("sentinel://:s3cret@a,:s3cret@b/0?master_name=m", "must have user and password once"),
        ("sentinel://a:port?master_name=m", "must have hosts separated by commas"),
        ("sentinel://a,?master_name=m", "must have hosts separated by commas"),
        ("sentinel:///0?master_name=m", "must have hosts separated by commas"),
        ("sentinel://a?master_name=m&master_name=n", "must have each option only once"),
        ("sentinel://a?master_name=m&db=1", "must not have the option db"),
        ("sentinel://a?master_name=m&min_other_sentinels=s3cret", "must have a number as its min_other_sentinels"),
        ("sentinels://a?master_name=m&sentinel_ssl=s3cret", "must have true or false as its sentinel_ssl"),
        (
            "sentinel://a?master_name=m&ssl_ca_certs=f",
            "must begin with .* sentinels:// to have the option ssl_ca_certs",
        ),
        ("sentinels://a?master_name=m&ssl_foo=1", "must not have the option ssl_foo; known:"),
        (
            "sentinels://a?master_name=m&ssl_cert_reqs=never",
            "must have none, optional or required as its ssl_cert_reqs",
        ),
        ("sentinel://a?master_name=m&sentinel_ssl=on", "sentinels:// to have the option sentinel_ssl"),
        ("redis+sentinel://:s3cret@a/mymaster", "must begin with one of redis, .* sentinels"),
        ("redis+cluster://a:7000/0", "must begin with one of redis, "),
        ("redis://a:6379,b:6379/0", "must have a single host"),
        ("redis://a:6379/0;redis://b:6379/0", "must have a single host"),
        ("redis://:s3cret@host/abc", "must have a number as its database"),
        ("redis://host/0/1", "must have a number as its database"),
        ("redis://host?db=abc", "must have a number as its db"),
        ("redis://host?db=1&db=2", "must have each option only once"),
        ("redis+socket:///a.sock?virtual_host=abc", "must have a number as its virtual_host"),
        ("redis://host:port/0", "must have a port"),
    ],
)
def test_an_unsupported_store_is_refused_with_one_sentence(url: str, rule: str) -> None:
    with pytest.raises(ConfigError, match=rf"^a2a_store_url = …: .*{rule}[^.]*$") as exc_info:
        load_settings({"a2a_store_url": url}, {})

    assert "s3cret" not in str(exc_info.value)


@pytest.mark.parametrize(
    "url",
    [
        "redis://host",
        "redis://host:1/",
        "rediss://u:p,w;d@host:1/15?ssl_cert_reqs=none",
        "unix:///a/b.sock?db=1",
        "sentinel://a?master_name=m",
        "sentinels://u:p%40;w,d@a:1,[::1]:2/3?master_name=m&sentinel_ssl=false",
    ],
)
def test_a_supported_store_is_accepted(url: str) -> None:
    assert Settings(store_url=url).store_url == url


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "soon", None, True, [1]])
@pytest.mark.parametrize("name", ["lease_ttl", "cancel_grace", "redispatch_after", "retention"])
def test_an_invalid_number_is_refused_with_its_field(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"a2a_{name} = {re.escape(repr(value))}: must be"):
        load_settings({"a2a_store_url": REDIS, f"a2a_{name}": value}, {})


@pytest.mark.parametrize(
    ("variable", "kind"), [("A2A_RETENTION", "a whole number"), ("A2A_LEASE_TTL", "a finite number")]
)
def test_an_environment_variable_that_can_not_be_read_is_named(variable: str, kind: str) -> None:
    with pytest.raises(ConfigError, match=f"{variable} = 'soon': must be {kind}"):
        load_settings({"a2a_store_url": REDIS}, {variable: "soon"})


def test_an_unknown_setting_is_refused_and_the_known_are_named() -> None:
    with pytest.raises(ConfigError, match=r"a2a_lease_tll in the Celery configuration is not a setting.*lease_ttl"):
        load_settings({"a2a_store_url": REDIS, "a2a_lease_tll": 1}, {})


@pytest.mark.parametrize(
    ("variable", "hint"),
    [
        ("A2A_AUTH_API_KEY", "did you mean A2A_AUTH_API_KEYS?"),
        ("A2A_AUTH_API_KEY_FILE", "did you mean A2A_AUTH_API_KEYS_FILE?"),
        ("A2A_AUTH_JWKS", "did you mean A2A_AUTH_JWKS_URL?"),
        ("A2A_LEASE_TLL", "did you mean A2A_LEASE_TTL?"),
        ("A2A_SECRETKEY", "did you mean A2A_SECRET_KEY?"),
        ("A2A_ALLOW_NETWORKS_FILE", "set A2A_ALLOW_NETWORKS, because only secrets are read from files"),
    ],
)
def test_a_misspelled_environment_variable_is_refused(variable: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(hint)) as exc_info:
        load_settings({"a2a_store_url": REDIS}, {variable: "s3cret"})

    assert str(exc_info.value).startswith(f"{variable} in the environment is not a setting")
    assert "s3cret" not in str(exc_info.value)


@pytest.mark.parametrize(
    "variable",
    [
        "A2A_API_KEY",
        "A2A_API_KEY_FILE",
        "A2A_AUTH_TOKEN",
        "A2A_BEARER",
        "A2A_CELERY_APP",
        "A2A_CONCURRENCY",
        "A2A_GATEWAY_SERVICE_PORT_GRPC",
        "A2A_IMAGE",
        "A2A_LISTEN",
        "A2A_PORT",
        "A2A_STORE_PORT_6379_TCP_ADDR",
        "A2A_STORE_SERVICE_HOST",
    ],
)
def test_variables_of_commands_clusters_and_compose_files_are_ignored(variable: str) -> None:
    assert load_settings({"a2a_store_url": REDIS}, {variable: "x"}) == Settings(store_url=REDIS)


@pytest.mark.parametrize("name", REMOVED)
def test_a_removed_setting_is_refused_with_what_applies_instead(name: str) -> None:
    app = django_style(**{f"CELERY_A2A_{name.upper()}": "s3cret"})
    texts = []

    for conf, environ, namespace in (
        ({"a2a_store_url": REDIS}, {f"A2A_{name.upper()}": "s3cret"}, None),
        ({"a2a_store_url": REDIS, f"a2a_{name}": "s3cret"}, {}, None),
        (app.conf, {}, app.namespace),
    ):
        with pytest.raises(ConfigError) as exc_info:
            load_settings(conf, environ, namespace)
        texts.append(str(exc_info.value))

    remedy = f"is no longer a setting: remove it; {REMOVED[name]}"
    assert texts == [
        f"A2A_{name.upper()} in the environment {remedy}",
        f"a2a_{name} in the Celery configuration {remedy}",
        f"CELERY_A2A_{name.upper()} in the Celery configuration {remedy}",
    ]


def test_settings_of_other_packages_are_ignored() -> None:
    assert load_settings({"a2a_store_url": REDIS, "result_expires": 1}, {"A2A_SOMETHING": "x"}).store_url == REDIS


@pytest.mark.parametrize(
    ("conf", "environ", "expected"),
    [
        ({"result_backend": "redis://backend", "broker_url": "redis://broker"}, {}, "redis://backend"),
        ({"result_backend": "rpc://", "broker_url": "redis://broker"}, {}, "redis://broker"),
        ({"result_backend": "sentinel://a", "broker_url": "redis://broker"}, {}, "redis://broker"),
        ({"broker_url": "redis://broker"}, {"CELERY_BROKER_URL": "rediss://env"}, "rediss://env"),
        ({"result_backend": "redis://b"}, {"CELERY_RESULT_BACKEND": "unix:///env"}, "unix:///env"),
        ({"result_backend": "redis://b", "a2a_store_url": "valkey://own"}, {}, "valkey://own"),
        ({"a2a_store_url": "valkey://own"}, {"A2A_STORE_URL": "redis://env"}, "redis://env"),
    ],
)
def test_without_a_store_the_redis_beside_it_is_used(
    conf: dict[str, str], environ: dict[str, str], expected: str
) -> None:
    assert load_settings(conf, environ).store_url == expected


def test_an_address_for_log_lines_has_no_password_of_a_primary_or_a_sentinel() -> None:
    url = "sentinels://u:s3cret@a,[::1]:2/?master_name=m&sentinel_password=s3cret"

    assert url_address(url) == "sentinels://a,[::1]:2/"


def test_a_url_of_sentinels_is_read_as_a_whole() -> None:
    url = (
        "sentinels://u:p%40{}@a:1,b/3?master_name=m&min_other_sentinels=2&ssl_ca_certs=f&ssl_cert_reqs=CERT_NONE"
        "&sentinel_username=v&sentinel_password=p%26"
    )

    assert SentinelAddress.of(url) == SentinelAddress(
        sentinels=(("a", 1), ("b", 26379)),
        master_name="m",
        min_other_sentinels=2,
        primary_url="rediss://u:p%40{}@sentinel/3?ssl_ca_certs=f&ssl_cert_reqs=none",
        sentinel_url="rediss://sentinel/0?ssl_ca_certs=f&ssl_cert_reqs=none&username=v&password=p%26",
    )


def test_sentinels_may_have_no_tls() -> None:
    address = SentinelAddress.of("sentinels://a?master_name=m&ssl_ca_certs=f&sentinel_ssl=false")

    assert (address.primary_url, address.sentinel_url) == (
        "rediss://sentinel/0?ssl_ca_certs=f",
        "redis://sentinel/0?",
    )


@pytest.mark.parametrize("url", ["amqp://user:s3cret@host", "sentinel://:s3cret@a:26379/0;sentinel://b:26379/0"])
def test_without_a_redis_the_error_names_the_setting(url: str) -> None:
    with pytest.raises(ConfigError, match="A2A_STORE_URL=redis://host:6379/0 or sentinel://host") as exc_info:
        load_settings({"broker_url": url}, {})

    assert "s3cret" not in str(exc_info.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql+asyncpg://me:s3cret@db.example.com:5432/a2a",
        "mysql+aiomysql://me:s3cret@db.example.com/a2a?charset=utf8mb4",
        "sqlite+aiosqlite:////var/lib/a2a.db",
    ],
)
def test_an_archive_is_a_database_with_a_driver_for_event_loops(url: str) -> None:
    assert Settings(archive_url=url, archive_retention=10**8).archive_url == url


@pytest.mark.parametrize(
    "url", ["postgresql://me:s3cret@db/a2a", "sqlite+aiosqlite://", "sqlite+aiosqlite:///:memory:", "redis://db/0", ""]
)
def test_another_archive_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ConfigError, match=r"a2a_archive_url = …: must begin with one of postgresql\+asyncpg") as e:
        Settings(archive_url=url)
    assert "s3cret" not in str(e.value)


def test_consent_is_asked_for_in_the_name_of_the_public_url() -> None:
    with pytest.raises(ConfigError, match="a2a_webhook_consent = True: needs a2a_public_url"):
        Settings(webhook_consent=True)


def test_the_retention_of_an_archive_exceeds_that_of_the_store() -> None:
    with pytest.raises(ConfigError, match="a2a_archive_retention = 60: must be more than a2a_retention"):
        Settings(retention=60, archive_retention=60)


def django_style(**settings: Any) -> Celery:
    """Return an app that is configured like a Django project: by an object, under the namespace CELERY."""
    app = Celery("test")
    app.config_from_object(type("settings", (), {"CELERY_A2A_STORE_URL": REDIS, **settings}), namespace="CELERY")
    return app


def test_every_setting_is_read_under_the_namespace_of_the_app() -> None:
    values: dict[str, Any] = {
        "lease_ttl": 3.0,
        "ui": True,
        "allow_networks": ("10.0.0.0/8",),
        "auth_api_keys": ("alice:sha256:" + "0" * 64,),
        "grpc_port": 50051,
    }
    app = django_style(**{f"CELERY_A2A_{name.upper()}": value for name, value in values.items()})

    settings = load_settings(app.conf, {}, app.namespace)

    assert {name: getattr(settings, name) for name in values} == values
    assert settings.store_url == REDIS


def test_a_value_set_on_the_app_wins_under_a_namespace_too() -> None:
    app = django_style(CELERY_A2A_LEASE_TTL=3)
    app.conf.a2a_lease_ttl = 4

    assert load_settings(app.conf, {}, app.namespace).lease_ttl == 4


def test_the_broker_under_the_namespace_is_the_default_store() -> None:
    app = django_style(CELERY_A2A_STORE_URL="", CELERY_BROKER_URL="redis://broker/3")

    settings_with_sources = read_settings(app.conf, {}, app.namespace)

    assert settings_with_sources.settings.store_url == "redis://broker/3"
    assert settings_with_sources.sources["store_url"] == "CELERY_BROKER_URL in the Celery configuration"


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("CELERY_A2A_LEASE_TLL", r"TLL .* is not a setting of this version; did you mean CELERY_A2A_LEASE_TTL\?"),
        ("CELERY_A2A_QUUX", "QUUX .* is not a setting of this version; known: .*CELERY_A2A_LEASE_TTL, "),
        ("CELERY_a2a_lease_ttl", "CELERY_a2a_lease_ttl .* is not read: rename it to CELERY_A2A_LEASE_TTL"),
        ("A2A_AUTH_API_KEYS", "A2A_AUTH_API_KEYS .* is not read: rename it to CELERY_A2A_AUTH_API_KEYS"),
    ],
)
def test_a_name_that_has_no_effect_under_the_namespace_is_refused(name: str, rule: str) -> None:
    app = django_style(**{name: "s3cret"})

    with pytest.raises(ConfigError, match=rule) as exc_info:
        load_settings(app.conf, {}, app.namespace)

    assert "s3cret" not in str(exc_info.value)


def test_a_setting_of_the_project_with_a_similar_name_is_ignored() -> None:
    app = django_style(A2A_LOGO="x", A2A_PUBLIC_URL="https://one", CELERY_A2A_PUBLIC_URL="https://two")

    assert load_settings(app.conf, {}, app.namespace).public_url == "https://two"


def test_an_upper_case_name_without_a_namespace_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"A2A_UI .* is not read: rename it to a2a_ui"):
        load_settings({"a2a_store_url": REDIS, "A2A_UI": True}, {})


def test_each_setting_names_its_source(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(KEY)
    app = django_style(CELERY_A2A_LEASE_TTL=3, CELERY_A2A_RETENTION=60)
    environ = {"A2A_RETENTION": "70", "A2A_SECRET_KEY_FILE": str(tmp_path / "key")}

    sources = read_settings(app.conf, environ, app.namespace).sources

    assert sources == {
        "store_url": "CELERY_A2A_STORE_URL in the Celery configuration",
        "lease_ttl": "CELERY_A2A_LEASE_TTL in the Celery configuration",
        "retention": "A2A_RETENTION in the environment",
        "secret_key": "A2A_SECRET_KEY_FILE in the environment",
    }
