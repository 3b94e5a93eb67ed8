"""What the router asks of HTTP upstreams: a session, headers, bounded answers."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING

import aiohttp

if TYPE_CHECKING:
    from collections.abc import Mapping

    from infinistore.router.settings import RouterSettings

REQUEST_ID = "X-Request-Id"
_REQUEST_ID_CHARS_MAX = 128
# What the upstreams need of a client's headers. The rest (cookies, hop-by-hop headers, lengths that
# no longer hold) stays here.
_FORWARDED = ("Authorization", "traceparent", "tracestate", "X-Session-ID")

# What an upstream that is dead, slow or confused makes of a request. asyncio's TimeoutError is an
# OSError only from Python 3.11 on.
UPSTREAM_ERRORS = (aiohttp.ClientError, OSError, asyncio.TimeoutError)


class AnswerTooLargeError(Exception):
    """An upstream sent more than the router is willing to hold."""


def open_session(settings: RouterSettings) -> aiohttp.ClientSession:
    """A client session with a deadline on connecting; the other deadlines go with each request.

    Connections are not kept: vLLM's HTTP server drops idle ones after 5 s, and a POST that meets
    one just then fails in a way that cannot be told from a dead server.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(force_close=True, limit=0),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=settings.connect_timeout_s),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        trust_env=False,
    )


def request_id(headers: Mapping[str, str]) -> str:
    """The client's request id where it is usable, else a new one."""
    given = headers.get(REQUEST_ID, "")
    if 0 < len(given) <= _REQUEST_ID_CHARS_MAX and given.isascii() and given.isprintable():
        return given
    return uuid.uuid4().hex


def upstream_headers(headers: Mapping[str, str], identity: str) -> dict[str, str]:
    """The headers that go to prefill and decode alike."""
    kept = {name: headers[name] for name in _FORWARDED if name in headers}
    return {
        **kept,
        REQUEST_ID: identity,
        "Content-Type": "application/json",
        "Accept-Encoding": "identity",
    }


async def read_bounded(content: aiohttp.StreamReader, bytes_max: int) -> bytes:
    """The whole body, or `AnswerTooLargeError` as soon as it is past the bound."""
    parts: list[bytes] = []
    total = 0
    async for part in content.iter_any():
        total += len(part)
        if total > bytes_max:
            raise AnswerTooLargeError(f"the answer is larger than {bytes_max} bytes")
        parts.append(part)
    return b"".join(parts)
