"""Addresses of servers, as people write them: infinistore://host:port; infinistores:// by TLS."""

from __future__ import annotations

from infinistore.errors import UsageError

SCHEME = "infinistore://"
SECURE_SCHEME = "infinistores://"  # TLS
PORT = 22345


def parse_address(url: str) -> tuple[str, int]:
    """Host and port of `infinistore[s]://host[:port]`; IPv6 in brackets. Raises `UsageError`."""
    if not isinstance(url, str):
        raise UsageError(
            f"the server's address is a {type(url).__name__}; give a text like {_like()}"
        )
    scheme, separator, rest = url.strip().partition("://")
    if separator and scheme + separator not in (SCHEME, SECURE_SCHEME):
        raise UsageError(f"{url!r}: the scheme is {scheme!r}; write {_like()}")
    rest = (rest if separator else scheme).removesuffix("/")
    if any(mark in rest for mark in "/?#@"):
        raise UsageError(
            f"{url!r} has more than host and port; write {_like()}, and give token and namespace "
            "to connect()"
        )
    host, port = _split(url, rest)
    if not host:
        raise UsageError(f"{url!r} names no host; write {_like()}")
    return host, _port(url, port)


def is_secure(url: str) -> bool:
    """Whether a URL, of a server or a cluster, asks for TLS."""
    return url.strip().partition("://")[0].partition("+")[0] == SECURE_SCHEME.removesuffix("://")


def _like() -> str:
    return f"{SCHEME}host:{PORT}"


def _split(url: str, rest: str) -> tuple[str, str]:
    if rest.startswith("["):
        host, closed, port = rest[1:].partition("]")
        if not closed or (port and not port.startswith(":")):
            raise UsageError(f"{url!r}: write an IPv6 address as {SCHEME}[::1]:{PORT}")
        return host, port.removeprefix(":")
    if rest.count(":") > 1:
        raise UsageError(f"{url!r}: put the IPv6 address in brackets, {SCHEME}[{rest}]:{PORT}")
    host, _, port = rest.partition(":")
    return host, port


def _port(url: str, text: str) -> int:
    if not text:
        return PORT
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text) <= 65535:
        raise UsageError(f"{url!r}: the port {text!r} is no number of 1 to 65535")
    return int(text)
