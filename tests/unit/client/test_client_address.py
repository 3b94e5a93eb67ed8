"""Addresses of servers."""

from __future__ import annotations

import pytest

from infinistore.client.address import is_secure, parse_address
from infinistore.errors import UsageError


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [
        ("infinistore://host:1", "host", 1),
        ("infinistore://host", "host", 22345),
        ("infinistore://host/", "host", 22345),
        ("infinistore://host:", "host", 22345),
        ("infinistore://10.0.0.7:65535", "10.0.0.7", 65535),
        ("infinistore://[::1]:22345", "::1", 22345),
        ("infinistore://[fe80::1%eth0]", "fe80::1%eth0", 22345),
        (" infinistore://host:1 ", "host", 1),
        ("infinistores://host", "host", 22345),
        ("host:1", "host", 1),
        ("host", "host", 22345),
        ("[::1]", "::1", 22345),
    ],
)
def test_good_addresses(url: str, host: str, port: int) -> None:
    assert parse_address(url) == (host, port)


@pytest.mark.parametrize(
    ("url", "secure"),
    [
        ("infinistores://a,b:1", True),
        (" infinistores+etcd://e/c", True),
        ("infinistore://a", False),
        ("infinistore+etcd://infinistores/c", False),
        ("infinistores:1", False),
    ],
)
def test_tls_is_asked_for_by_the_scheme(url: str, secure: bool) -> None:
    assert is_secure(url) == secure


@pytest.mark.parametrize("port", ["65536", "-1", "0", "1.5", "\u0661"])
def test_ports_that_are_none(port: str) -> None:
    with pytest.raises(UsageError, match="is no number of 1 to 65535"):
        parse_address(f"infinistore://host:{port}")


def test_an_address_is_a_text() -> None:
    with pytest.raises(UsageError, match="give a text like infinistore://host:22345"):
        parse_address(None)  # type: ignore[arg-type]
