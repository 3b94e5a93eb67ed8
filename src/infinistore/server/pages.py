"""The web page: a few static files without data, which comes from the endpoints, by the token."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib import resources
from typing import Any

from aiohttp import web

PAGES = {
    "/": ("index.html", "text/html"),
    "/web/app.js": ("app.js", "text/javascript"),
    "/web/draw.js": ("draw.js", "text/javascript"),
    "/web/format.js": ("format.js", "text/javascript"),
    "/web/icon.svg": ("icon.svg", "image/svg+xml"),
    "/web/style.css": ("style.css", "text/css"),
}
# Nothing but our own files runs, is shown or is asked; nobody may frame the page.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def page(path: str) -> Callable[[Any, web.Request], Awaitable[web.StreamResponse]]:
    """The handler of one file."""
    name, kind = PAGES[path]

    async def handle(admin: Any, request: web.Request) -> web.StreamResponse:
        body = (resources.files("infinistore.server") / "web" / name).read_bytes()
        return web.Response(body=body, content_type=kind, charset="utf-8", headers=HEADERS)

    return handle
