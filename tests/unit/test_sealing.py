"""Sealing of configs and sessions. A sealed value opens only in the record for which it was sealed, and with the right
key."""

from __future__ import annotations

import pytest

from a2a_celery.crypto.sealing import NotSealedHere, Sealer, require_secrets, sealer_of
from a2a_celery.errors import ConfigError
from a2a_celery.settings import Settings
from a2a_celery.settings.loading import load_settings

OLD, NEW = "o" * 32, "n" * 32
TEXT = b"Bearer s3cret"
REDIS = "redis://host/0"


def sealer(*secrets: str) -> Sealer:
    return Sealer([secret.encode() for secret in secrets])


def test_a_sealed_config_opens_in_its_place_and_cannot_be_read() -> None:
    value = sealer(NEW).seal(TEXT, "task", "config")

    assert sealer(NEW).open(value, "task", "config") == TEXT
    assert TEXT not in value
    assert sealer(NEW).seal(TEXT, "task", "config") != value


@pytest.mark.parametrize(("task_id", "config_id"), [("task", "other"), ("other", "config"), ("taskc", "onfig")])
def test_a_moved_config_does_not_open(task_id: str, config_id: str) -> None:
    value = sealer(NEW).seal(TEXT, "task", "config")

    with pytest.raises(NotSealedHere, match="another purpose"):
        sealer(NEW).open(value, task_id, config_id)


@pytest.mark.parametrize("at", [0, 1, 8, 9, 20, 21, -1])
def test_a_changed_bit_is_noticed(at: int) -> None:
    value = bytearray(sealer(NEW).seal(TEXT, "task", "config"))
    value[at] ^= 1

    with pytest.raises(NotSealedHere):
        sealer(NEW).open(bytes(value), "task", "config")


@pytest.mark.parametrize("length", [0, 1, 9, 15, 21, 30])
def test_a_truncated_config_is_refused(length: int) -> None:
    with pytest.raises(NotSealedHere):
        sealer(NEW).open(sealer(NEW).seal(TEXT, "task", "config")[:length], "task", "config")


def test_a_sealed_session_does_not_open_as_a_config() -> None:
    value = sealer(NEW).seal(TEXT, "session", "agent//ann", "context")

    assert sealer(NEW).open(value, "session", "agent//ann", "context") == TEXT
    for other in (("agent//ann", "context"), ("session", "agent//bob", "context"), ("session", "agent//ann")):
        with pytest.raises(NotSealedHere):
            sealer(NEW).open(value, *other)


def test_a_new_secret_seals_and_the_old_one_still_opens() -> None:
    old_value = sealer(OLD).seal(TEXT, "t", "c")
    sealer_of_both = sealer(NEW, OLD)

    assert sealer_of_both.open(old_value, "t", "c") == TEXT
    assert sealer_of_both.fingerprint == sealer(NEW).fingerprint != sealer(OLD).fingerprint
    assert sealer(NEW).open(sealer_of_both.seal(TEXT, "t", "c"), "t", "c") == TEXT
    with pytest.raises(NotSealedHere, match="a2a_secret_key"):
        sealer(NEW).open(old_value, "t", "c")


def test_a_start_without_the_secrets_in_use_is_refused() -> None:
    in_use = sealer(OLD).fingerprints

    require_secrets(sealer(NEW, OLD), in_use)
    require_secrets(None, [])
    with pytest.raises(ConfigError, match="is not set"):
        require_secrets(None, in_use)
    with pytest.raises(ConfigError, match=f"lacks the secret {sealer(OLD).fingerprint}"):
        require_secrets(sealer(NEW), in_use)


def test_a_deployment_without_a_secret_has_no_sealer() -> None:
    assert sealer_of(Settings(store_url=REDIS).secret_keys) is None
    with pytest.raises(ValueError, match="needs a secret"):
        Sealer([])


@pytest.mark.parametrize("secrets", [NEW, [NEW], (NEW, OLD)])
def test_secrets_come_from_the_settings_and_are_not_shown(secrets: object) -> None:
    settings = load_settings({"a2a_store_url": REDIS, "a2a_secret_key": secrets}, {})

    settings_sealer = sealer_of(settings.secret_keys)
    assert settings_sealer is not None
    assert settings_sealer.fingerprint == sealer(NEW).fingerprint
    assert NEW not in repr(settings)


def test_several_secrets_and_networks_come_from_the_environment() -> None:
    environ = {"A2A_SECRET_KEY": f"{NEW} {OLD}", "A2A_ALLOW_NETWORKS": "10.0.0.0/8  fd00::/8"}

    settings = load_settings({"a2a_store_url": REDIS}, environ)

    assert settings.secret_keys == (NEW.encode(), OLD.encode())
    assert [str(network) for network in settings.push_networks] == ["10.0.0.0/8", "fd00::/8"]


@pytest.mark.parametrize(
    ("secret", "rule"),
    [
        *((secret, "must have 32 characters or more") for secret in ("short", "", [], "o" * 31)),
        ([NEW, "short"], "has 2 secrets, because a space separates secrets: each must have 32 characters or more"),
        *((secret, "must not contain spaces or line ends") for secret in ([f"{NEW} {OLD}"], [NEW, f"{OLD}\n"])),
        *((secret, "must be a string or a list of strings or None") for secret in (7, [7])),
    ],
)
def test_an_invalid_secret_is_refused_and_not_shown(secret: object, rule: str) -> None:
    with pytest.raises(ConfigError, match=f"a2a_secret_key = …: {rule}"):
        Settings(store_url=REDIS, secret_key=secret)  # type: ignore[arg-type]


def test_a_passphrase_in_the_environment_is_refused_and_not_shown() -> None:
    with pytest.raises(ConfigError, match="has 3 secrets, because a space separates secrets") as refusal:
        load_settings({"a2a_store_url": REDIS}, {"A2A_SECRET_KEY": f"correct horse {'battery' * 8}"})

    assert not any(word in str(refusal.value) for word in ("correct", "horse", "battery"))


@pytest.mark.parametrize("networks", ["10.0.0.0/8", ["10.0.0.1/8"], ["intranet"], [10], None])
def test_an_invalid_list_of_networks_is_refused(networks: object) -> None:
    with pytest.raises(ConfigError, match=r"a2a_allow_networks = .*: must be"):
        Settings(store_url=REDIS, allow_networks=networks)  # type: ignore[arg-type]
