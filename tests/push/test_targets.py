"""Validation of push-notification configs and its errors."""

from __future__ import annotations

from ipaddress import ip_network

import pytest
from a2a.types import AuthenticationInfo, TaskPushNotificationConfig
from hypothesis import given
from hypothesis import strategies as st

from a2a_celery.push import Target, TargetRefused, check_config, parse_target
from a2a_celery.push.targets import MAX_URL_LENGTH, MAX_VALUE_LENGTH

LOCAL = [ip_network("127.0.0.0/8"), ip_network("::1/128")]

TAKEN = {
    "https://hooks.example/a2a": "https://hooks.example/a2a",
    "https://hooks.example": "https://hooks.example/",
    "HTTPS://Hooks.EXAMPLE:443/A2A?Key=V": "https://hooks.example/A2A?Key=V",
    "https://hooks.example.:8443/": "https://hooks.example:8443/",
    "https://hooks.example:1/": "https://hooks.example:1/",
    "https://hooks.example:65535/": "https://hooks.example:65535/",
    "https://my_service.example/%20?q=a%23b": "https://my_service.example/%20?q=a%23b",
    "https://bücher.example/": "https://xn--bcher-kva.example/",
    "https://BÜCHER.example/": "https://xn--bcher-kva.example/",
    "https://xn--bcher-kva.example/": "https://xn--bcher-kva.example/",
    "https://8.8.8.8/": "https://8.8.8.8/",
    "https://134744072/": "https://8.8.8.8/",
    "https://0x8.0x8.010.8./": "https://8.8.8.8/",
    "https://[2606:4700:4700:0::1111]:8443/": "https://[2606:4700:4700::1111]:8443/",
    "https://a.example/?": "https://a.example/",
    "https://a.example//b/../c": "https://a.example//b/../c",
}

REFUSED = {
    "a scheme": ["", "ftp://a.example/", "file:///etc/passwd", "gopher://a.example/", "javascript:x", "a.example/hook"],
    "no scheme": ["//a.example/hook", "https:a.example", "https:/a.example", "https:///hook", "https://", "https://:443/"],
    "without TLS": ["http://a.example/", "http://8.8.8.8/", "http://[2606:4700::1]/"],
    "credentials": ["https://u:p@a.example/", "https://u@a.example/", "https://@a.example/", "https://a.example@127.0.0.1/"],
    "a fragment": ["https://a.example/#x", "https://a.example#@127.0.0.1/", "https://a.example/?x#"],
    "control characters": [
        *("https://a.example/\r\nX: y", "https://a.example/\n", "\thttps://a.example/", "https://a.exa\tmple/"),
        *("https://a.example/\x00", "https://a.example/ b", " https://a.example/", "https://a.example/\x7f"),
        *("https://a.example/\u2028", "https://a.example/\x85", "https://a.example\\@127.0.0.1/"),
        "https:\\\\a.example/", "https://a.example/\\b",
    ],
    "a port": [
        *("https://a.example:0/", "https://a.example:65536/", "https://a.example:-1/", "https://a.example:x/"),
        *("https://a.example:22/", "https://a.example:25/", "https://a.example:6379/", "https://a.example:5672/"),
        *("https://a.example:２２/", "https://a.example:+443/", "https://a.example:4 43/", "https://a.example:2375/"),
    ],
    "no host": [
        *("https://a..example/", "https://.a.example/", "https://a.example../", "https://-a.example/", "https://a-/"),
        *("https://" + "a" * 64 + ".example/", "https://" + "a.b" * 90 + ".example/", "https://a%2eexample/"),
        *("https://a!b.example/", "https://a'b.example/", "https://[a.example]/", "https://[::1/", "https://::1/"),
        *("https://[1::2::3]/", "https://x[::1]/"),
        *("https://[::1]x/", "https://[8.8.8.8]/", "https://[v1.x]/"),
        *("https://\ud800.example/", "https://a,b.example/", "https://[]/"),
    ],
    "a zone": ["https://[fe80::1%25eth0]/", "https://[2606:4700::1%1]/", "https://[::1%lo]/"],
    "an address that is none": ["https://1.2.3.4.5/", "https://256.1.1.1/", "https://4294967296/", "https://a.1/",
                                "https://0x/", "https://08.8.8.8/", "https://1..2/"],
    "an address that is not public": [
        *("https://127.0.0.1/", "https://localhost/", "https://LOCALHOST:8443/", "https://localhost./"),
        *("https://a.localhost/", "https://10.0.0.1/", "https://192.168.1.1/", "https://172.16.0.1/", "https://0.0.0.0/"),
        *("https://169.254.169.254/latest/meta-data/", "https://100.100.100.200/", "https://224.0.0.1/"),
        *("https://2130706433/", "https://0x7f000001/", "https://0X7F.1/", "https://017700000001/", "https://127.1/"),
        *("https://127.0.1/", "https://0177.0.0.1/", "https://0x7f.0.0.1/", "https://0/", "https://127.0.0.1./"),
        *("https://１２７.０.０.１/", "https://127。0。0。1/", "https://⑯⑨.254.169.254/", "https://2852039166/"),
        *("https://[::1]/", "https://[::]/", "https://[::ffff:127.0.0.1]/", "https://[::ffff:7f00:1]/"),
        *("https://[0:0:0:0:0:ffff:169.254.169.254]/", "https://[::127.0.0.1]/", "https://[64:ff9b::127.0.0.1]/"),
        *("https://[2002:7f00:1::]/", "https://[2001::1]/", "https://[fd00:ec2::254]/", "https://[fe80::1]/"),
    ],
    "too long": ["https://a.example/" + "x" * MAX_URL_LENGTH],
    "other characters": ["https://a.example/ü", "https://a.example/?q=ü"],
}  # fmt: skip


@pytest.mark.parametrize("url", TAKEN)
def test_a_url_has_one_form(url: str) -> None:
    target = parse_target(url)

    assert target.url == TAKEN[url]
    assert parse_target(target.url) == target


@pytest.mark.parametrize(
    ("kind", "url"), [(kind, url) for kind, urls in REFUSED.items() for url in urls], ids=lambda value: repr(value)[:60]
)
def test_a_url_that_no_webhook_has_is_refused(kind: str, url: str) -> None:
    with pytest.raises(TargetRefused) as exc_info:
        parse_target(url)

    assert exc_info.value.field == "url"
    assert exc_info.value.rule


@pytest.mark.parametrize(
    ("url", "remedy"),
    [
        ("http://a.example/", "must begin with https://"),
        ("https://u:p@a.example/", "use authentication for credentials"),
        ("https://a.example/#x", "remove #"),
        ("https://a.example:22/", "port 22"),
        ("https://10.0.0.1/", "public addresses only"),
    ],
)
def test_the_error_names_the_remedy(url: str, remedy: str) -> None:
    with pytest.raises(TargetRefused, match=remedy):
        parse_target(url)


@given(st.text(max_size=60), st.sampled_from(["", "https://", "https://a.example", "https://[", "https://1.2.3"]))
def test_any_text_is_taken_or_refused(text: str, beginning: str) -> None:
    try:
        target = parse_target(beginning + text)
    except TargetRefused:
        return

    assert target.url.isascii()
    assert parse_target(target.url) == target


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.1", "2130706433", "localhost", "a.localhost", "[::1]", "[::ffff:127.0.0.1]"]
)
def test_allowed_networks_may_be_used_without_tls(host: str) -> None:
    assert parse_target(f"http://{host}:8080/x", LOCAL).port == 8080
    assert parse_target(f"https://{host}/x", LOCAL).port == 443
    with pytest.raises(TargetRefused):
        parse_target(f"http://{host}:6379/", LOCAL)


def test_a_name_without_tls_is_judged_when_it_is_known_where_it_leads() -> None:
    assert parse_target("http://inside.example/", LOCAL) == Target("http", "inside.example", 80, "/", None)


@pytest.mark.parametrize(
    "url", ["http://8.8.8.8/", "http://10.0.0.1/", "https://10.0.0.1/", "https://169.254.169.254/"]
)
def test_allowing_one_network_allows_no_other(url: str) -> None:
    with pytest.raises(TargetRefused):
        parse_target(url, LOCAL)


def config(**fields: str) -> TaskPushNotificationConfig:
    auth = AuthenticationInfo(scheme=fields.pop("scheme", ""), credentials=fields.pop("credentials", ""))
    return TaskPushNotificationConfig(url="https://a.example/", authentication=auth, **fields)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"token": "a token with spaces"},
        {"token": "whsec_" + "QUJD" * 8},
        {"scheme": "Bearer", "credentials": "ey.J-_~+/=="},
        {"scheme": "Bearer"},
        {"scheme": "Digest", "credentials": 'username="u", realm="r"'},
        {"token": "x" * MAX_VALUE_LENGTH},
    ],
)
def test_valid_header_values_are_accepted(fields: dict[str, str]) -> None:
    assert check_config(config(**fields)).host == "a.example"


BREAKING = ["a\r\nX-Admin: 1", "a\nb", "a\rb", "a\x00", "a\x7f", "ü", "\u2028", " a", "a ", "\t"]

UNUSABLE_FIELDS: list[tuple[str, dict[str, str]]] = [
    *(("token", {"token": value}) for value in BREAKING),
    ("token", {"token": "x" * (MAX_VALUE_LENGTH + 1)}),
    *(("token", {"token": value}) for value in ("whsec_", "whsec_!!!", "whsec_c2hvcnQ=")),
    *(("authentication.credentials", {"scheme": "Bearer", "credentials": value}) for value in BREAKING),
    ("authentication.scheme", {"credentials": "s3cret"}),
    *(("authentication.scheme", {"scheme": v, "credentials": "s"}) for v in ("Bea rer", "B\r\n", "B:", "x" * 65)),
]


@pytest.mark.parametrize(("field", "fields"), UNUSABLE_FIELDS)
def test_invalid_header_values_are_refused_with_their_field(field: str, fields: dict[str, str]) -> None:
    with pytest.raises(TargetRefused) as exc_info:
        check_config(config(**fields))

    assert exc_info.value.field == field
    assert not any(value and value in str(exc_info.value) for value in fields.values() if len(value) > 6)
