"""Settings, commands and numbers of docs/authentication.md, which must be those of the code."""

from __future__ import annotations

import re
import subprocess
from hashlib import sha256
from pathlib import Path

import pytest
from a2a.types import a2a_pb2

from a2a_celery.gateway.auth import keys, tokens
from a2a_celery.gateway.auth.authenticator import Authenticator
from a2a_celery.gateway.auth.from_settings import authenticator_from_settings
from a2a_celery.gateway.auth.keys import KEY_TYPES
from a2a_celery.gateway.auth.schemes import ApiKeys, PresentedCredentials
from a2a_celery.gateway.protocol_errors import EXTRA_RPC_CODES
from a2a_celery.settings import Settings
from a2a_celery.settings.loading import load_settings

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "authentication.md").read_text(encoding="utf-8")


def block(name: str) -> str:
    """Return the code block under the comment `name`."""
    match = re.search(rf"<!-- {name}: .*? -->\n```\w+\n(.*?)```", PAGE, re.DOTALL)
    assert match is not None, name
    return match[1]


def environment_after(*names: str) -> dict[str, str]:
    """Run documented shell blocks, and return the environment after them."""
    script = "\n".join(block(name) for name in names) + "\nenv"
    result = subprocess.run(["sh", "-euc", script], env={"PATH": "/usr/bin:/bin"}, capture_output=True, check=True)
    lines = [line.partition("=") for line in result.stdout.decode().splitlines()]
    return {name: value for name, _, value in lines if name.startswith("A2A_")}


def output_of(script: str) -> str:
    return subprocess.run(["sh", "-euc", script], capture_output=True, check=True, text=True).stdout


def set_up(environ: dict[str, str]) -> Authenticator:
    authenticator = authenticator_from_settings(load_settings({"a2a_store_url": "redis://host"}, environ))
    assert authenticator is not None
    return authenticator


def test_the_settings_for_a_jwks_are_valid() -> None:
    assert [scheme.name for scheme in set_up(environment_after("jwks")).schemes] == ["bearer"]


def test_the_settings_for_a_key_are_valid(tmp_path: Path) -> None:
    (tmp_path / "jwt_key").write_text("a-secret-that-has-32-characters-or-more\n")
    environ = environment_after("jwks", "key")
    assert environ.pop("A2A_AUTH_JWKS_URL")
    environ["A2A_AUTH_JWT_KEY_FILE"] = environ["A2A_AUTH_JWT_KEY_FILE"].replace("/run/secrets", str(tmp_path))
    assert [scheme.name for scheme in set_up(environ).schemes] == ["bearer"]


async def test_an_api_key_is_made_that_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    script = block("api-key") + '\nprintf %s "$KEY"'
    key = output_of(script)
    entry = (tmp_path / "api_keys").read_text()

    assert entry == f"alice:sha256:{sha256(key.encode()).hexdigest()}\n"
    identity = await ApiKeys(entry.split(), "X-API-Key").identify(PresentedCredentials(lambda _: [key], None))
    assert identity is not None
    assert identity.owner == "alice"


def test_the_proxy_sets_the_header_that_is_believed() -> None:
    environ = environment_after("proxy")
    header = environ["A2A_AUTH_IDENTITY_HEADER"]
    nginx = block("nginx")

    assert [scheme.name for scheme in set_up(environ).schemes] == ["mutualTls"]
    assert f"proxy_set_header {header} $ssl_client_s_dn;" in nginx
    assert f"grpc_set_header {header} $ssl_client_s_dn;" in nginx
    assert re.search(r"ssl_verify_client +on;", nginx)
    [service] = a2a_pb2.DESCRIPTOR.services_by_name.values()
    assert f"location /{service.full_name}/ {{" in nginx
    assert nginx.count("{") == nginx.count("}")


def test_prometheus_sends_the_header_of_api_keys() -> None:
    assert f"\n      {Settings().auth_api_key_header}:\n" in block("prometheus")


def test_its_numbers_are_the_codes() -> None:
    text = " ".join(PAGE.split())
    assert f"Clocks may differ by {tokens.LEEWAY} seconds" in text
    assert f"when it starts and every {keys.REFRESH_EVERY:.0f} seconds" in text
    assert f"at most once every {keys.ASK_AGAIN_AFTER:.0f} seconds" in text
    for code in EXTRA_RPC_CODES.values():
        assert f"| {code} |" in PAGE
    rule_names = set(re.findall(r"`([A-Z]{2}\d{3})` to `[A-Z]{2}\d{3}`", PAGE))
    assert rule_names == {name for name in KEY_TYPES if name.endswith("256")}


def test_every_setting_of_it_is_named() -> None:
    for name in (name for name in Settings.__slots__ if name.startswith("auth_")):
        assert f"A2A_{name.upper()}" in PAGE, name
