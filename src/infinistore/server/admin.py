"""The admin HTTP port: health, counters, keys, purge. One table declares routes and OpenAPI."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import logging
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from infinistore.cluster.node.agent import Agent
from infinistore.errors import ConfigError, InfiniStoreError, SetupError
from infinistore.server import questions
from infinistore.server.housekeeping import is_populating
from infinistore.server.log_tail import LogTail
from infinistore.server.native import NativeServer
from infinistore.server.pages import PAGES, page
from infinistore.server.prometheus import (
    CONTENT_TYPE,
    exposition,
    namespace_exposition,
    tenant_exposition,
)
from infinistore.server.scrub import DEFAULT_RATE, parse_rate, scrub
from infinistore.server.tenants import Tenant, identify

logger = logging.getLogger(__name__)

# A stop must not wait for a browser's or a scraper's idle connection.
SHUTDOWN_TIMEOUT_S = 0.2


@dataclass(slots=True)
class Admin:
    """What the handlers need to know. `draining` is set once, by the daemon.

    `is_local`: only this machine reaches the port. `scrubbing`: a handler is at it.
    """

    server: NativeServer
    version: str
    token: str = ""
    incarnation: int = 0
    tenants: tuple[Tenant, ...] = ()
    read_token: str = ""
    is_local: bool = False
    log: LogTail = field(default_factory=LogTail)
    agent: Agent | None = None
    draining: bool = False
    scrubbing: bool = False
    started_s: float = field(default_factory=time.monotonic)

    def uptime_s(self) -> float:
        return round(time.monotonic() - self.started_s, 3)

    @property
    def is_open(self) -> bool:
        return not (self.token or self.tenants or self.read_token)

    def caller(self, request: web.Request) -> Tenant | None:
        """Whose token the request shows; None: nobody's. An open server's callers see all."""
        shown = request.headers.get("Authorization", "").removeprefix("Bearer ").strip()
        return identify(shown, self.token, self.tenants, self.read_token)

    def let_in(self, request: web.Request) -> Tenant:
        """The caller of a request that has come as far as its handler."""
        caller = self.caller(request)
        assert caller is not None
        return caller


ADMIN = web.AppKey("ADMIN", Admin)
Handler = Callable[[Admin, web.Request], Awaitable[web.StreamResponse]]


async def health(admin: Admin, request: web.Request) -> web.StreamResponse:
    status = "draining" if admin.draining else "ok"
    body: dict[str, Any] = {"status": status}
    caller = admin.caller(request)
    if caller and caller.sees_all:  # a probe that has no token still learns the state
        snapshot = admin.server.snapshot()
        body |= {
            "version": admin.version,
            "incarnation": admin.incarnation,
            "uptime_s": admin.uptime_s(),
            "populating": is_populating(snapshot),
            "populated_bytes": snapshot.get("populated_bytes", 0),
            "pool_bytes": snapshot.get("capacity_bytes", 0),
        }
        if admin.agent is not None:
            body["cluster"] = admin.agent.health()
    return web.json_response(body, status=503 if admin.draining else 200)


async def stats(admin: Admin, request: web.Request) -> web.StreamResponse:
    about = {
        "version": admin.version,
        "incarnation": admin.incarnation,
        "uptime_s": admin.uptime_s(),
    }
    return web.json_response({**about, **admin.server.snapshot()})


async def metrics(admin: Admin, request: web.Request) -> web.StreamResponse:
    extra = {"uptime_seconds": admin.uptime_s(), "draining": float(admin.draining)}
    cluster = {} if admin.agent is None else admin.agent.metrics()
    spaces = await asyncio.to_thread(admin.server.namespaces)
    body = exposition({**admin.server.snapshot(), **cluster}, extra) + namespace_exposition(spaces)
    body += tenant_exposition(_tenant_rows(admin, admin.tenants))
    return web.Response(body=body.encode(), headers={"Content-Type": CONTENT_TYPE})


async def keys_count(admin: Admin, request: web.Request) -> web.StreamResponse:
    space = request.query.get("namespace")
    count = await asyncio.to_thread(admin.server.key_count, *admin.let_in(request).whose(space))
    return web.json_response({"namespace": space, "count": count})


async def kvmap_len(admin: Admin, request: web.Request) -> web.StreamResponse:
    count = await asyncio.to_thread(admin.server.key_count, None)
    return web.json_response({"len": count})


async def staged(admin: Admin, request: web.Request) -> web.StreamResponse:
    values = [_readable(value) for value in await asyncio.to_thread(admin.server.staged)]
    caller = admin.let_in(request)
    if not caller.sees_all:
        mine = f"{caller.name}/"
        values = [
            value | {"namespace": value["namespace"].removeprefix(mine)}
            for value in values
            if value["namespace"].startswith(mine)
        ]
    return web.json_response({"staged": values})


async def tenants(admin: Admin, request: web.Request) -> web.StreamResponse:
    caller = admin.let_in(request)
    shown = admin.tenants if caller.sees_all else (caller,)
    return web.json_response({"tenants": _tenant_rows(admin, shown)})


def _tenant_rows(admin: Admin, shown: Iterable[Tenant]) -> list[dict[str, Any]]:
    return [
        {"tenant": each.name, "quota_bytes": each.quota_bytes}
        | dict(admin.server.tenant_use(each.name))
        for each in shown
    ]


async def purge(admin: Admin, request: web.Request) -> web.StreamResponse:
    space = request.query.get("namespace")
    count = await asyncio.to_thread(admin.server.purge, *admin.let_in(request).whose(space))
    return web.json_response({"status": "ok", "namespace": space, "num": count})


async def integrity(admin: Admin, request: web.Request) -> web.StreamResponse:
    wrong = await asyncio.to_thread(admin.server.check_integrity)
    return web.json_response({"ok": not wrong, "wrong": wrong})


async def verify(admin: Admin, request: web.Request) -> web.StreamResponse:
    try:
        rate = parse_rate(request.query.get("rate", DEFAULT_RATE))
    except ConfigError as error:
        return _refusal(400, str(error))
    if admin.scrubbing:
        return _refusal(409, "the pool is being verified already; wait for its end")
    admin.scrubbing = True
    response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
    try:
        await response.prepare(request)
        async with contextlib.aclosing(scrub(admin.server, rate)) as progress:
            async for line in progress:
                line["damaged"] = [_readable(each) for each in line.get("damaged", ())]
                # Fails if nobody listens any more, which ends the scrub.
                await response.write(json.dumps(line).encode() + b"\n")
                if admin.draining:
                    break
        await response.write_eof()
    except ConnectionResetError:
        logger.info("who asked to verify the pool has gone; it is ended")
    finally:
        admin.scrubbing = False
    return response


async def cluster(admin: Admin, request: web.Request) -> web.StreamResponse:
    alone: dict[str, Any] = {"node": None, "nodes": []}
    return web.json_response(alone if admin.agent is None else admin.agent.status())


async def drain(admin: Admin, request: web.Request) -> web.StreamResponse:
    if admin.agent is None:
        return _refusal(409, "this server is a node of no cluster; stop it instead")
    try:
        name = await asyncio.to_thread(admin.agent.drain, request.query.get("node"))
    except InfiniStoreError as error:
        return _refusal(409, str(error))
    return web.json_response({"status": "leaving", "node": name})


def _answered(question: Callable[..., Awaitable[dict[str, Any]]]) -> Handler:
    """The route of a question (server/questions.py): asked by query or body, answered by JSON."""

    async def handle(admin: Admin, request: web.Request) -> web.StreamResponse:
        try:
            asked = await request.read() if request.method == "POST" else request.query
            return web.json_response(await question(admin.server, asked))
        except ConfigError as error:
            return _refusal(400, str(error))

    return handle


async def recent_log(admin: Admin, request: web.Request) -> web.StreamResponse:
    lines = [*admin.log.lines(), *admin.server.recent_log()]
    lines.sort(key=lambda line: float(line["time_s"]))
    return web.json_response({"lines": lines})


async def openapi(admin: Admin, request: web.Request) -> web.StreamResponse:
    return web.json_response(openapi_document(admin.version))


@dataclass(frozen=True, slots=True)
class Route:
    method: str
    path: str
    handler: Handler
    summary: str
    query: tuple[tuple[str, str], ...] = ()
    is_open: bool = False  # answered without a token
    for_tenants: bool = False  # answered a tenant too, about its own
    is_question: bool = False  # changes and stops nothing, though it is a POST

    @property
    def only_reads(self) -> bool:
        return self.is_question or (self.method == "GET" and self.path != "/integrity")


_NAMESPACE = (("namespace", "One namespace; left out: all of them."),)
_RATE = (("rate", "Bytes a second at most, like 1GB/s. Progress comes as lines of JSON."),)
_NODE = (("node", "A node's name; left out: this server's."),)
_LIMIT = (("limit", "So many at most, the first of them."),)
_SIZES = (("sizes", "Pools, like 16GiB,64GiB; left out: from an eighth of this one to 8 of it."),)
ROUTES = (
    Route("GET", "/health", health, "State; 503 while draining.", is_open=True),
    Route("GET", "/stats", stats, "Every counter, as JSON."),
    Route("GET", "/metrics", metrics, "Every counter, as Prometheus text."),
    Route(
        "GET", "/keys/count", keys_count, "How many keys can be read.", _NAMESPACE, for_tenants=True
    ),
    Route(
        "GET",
        "/staged",
        staged,
        "Values being written, with their filled ranges.",
        for_tenants=True,
    ),
    Route("GET", "/tenants", tenants, "Quota and use of each tenant.", for_tenants=True),
    Route("GET", "/namespaces", _answered(questions.namespaces), "What lives here.", _LIMIT),
    Route("GET", "/hottest", _answered(questions.hottest), "What is read most.", _LIMIT),
    Route("GET", "/whatif", _answered(questions.what_if), "Hit rates by pool size.", _SIZES),
    Route(
        "POST",
        "/explain",
        _answered(questions.explain),
        "Why keys are or are not here; of JSON "
        '{"namespace": TEXT, "keys": [TEXT], "hex_keys": [HEX]} with at most 1,024 keys.',
        is_question=True,
    ),
    Route("GET", "/integrity", integrity, "Whether the books add up; everybody waits for it."),
    Route("GET", "/cluster", cluster, "The nodes of this server's cluster, their load and copies."),
    Route("POST", "/drain", drain, "Moves a node's values to the others, then stops it.", _NODE),
    Route("POST", "/verify", verify, "Compares all values with their checksums.", _RATE),
    Route("POST", "/purge", purge, "Erases every key.", _NAMESPACE, for_tenants=True),
    Route("GET", "/kvmap_len", kvmap_len, "How many keys; the original's name for it."),
    Route("GET", "/log", recent_log, "The newest warnings and errors, oldest first."),
    Route("GET", "/openapi.json", openapi, "This description."),
    *(Route("GET", path, page(path), "The web page.", is_open=True) for path in PAGES),
)


def openapi_document(version: str) -> dict[str, Any]:
    """The routes as an OpenAPI 3.1 document."""
    paths: dict[str, Any] = {}
    for route in ROUTES:
        parameters = [
            {"name": name, "in": "query", "description": text, "schema": {"type": "string"}}
            for name, text in route.query
        ]
        operation = {
            "summary": route.summary,
            "parameters": parameters,
            "responses": {"200": {"description": "Done."}},
            "security": [] if route.is_open else [{"token": []}],
        }
        paths.setdefault(route.path, {})[route.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "InfiniStore admin", "version": version},
        "paths": paths,
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


def make_app(admin: Admin) -> web.Application:
    """The application, without a socket."""
    app = web.Application()
    app[ADMIN] = admin
    for route in ROUTES:
        app.router.add_route(route.method, route.path, _guarded(route))
    return app


def _guarded(route: Route) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def handle(request: web.Request) -> web.StreamResponse:
        admin = request.app[ADMIN]
        caller = admin.caller(request)
        if not route.is_open and (refusal := _of_a_stranger(admin, route.method, request)):
            return refusal
        if not route.is_open and caller is None:
            return _refusal(401, "show the token: Authorization: Bearer TOKEN")
        if caller is not None and caller.reads_only and not route.only_reads:
            return _refusal(403, "this token is for reading only: show the server's own token")
        if not route.is_open and caller is not None and not caller.sees_all:
            if not caller.is_admin:
                return _refusal(
                    403, "this tenant's token is for data only: it has not admin = true"
                )
            if not route.for_tenants:
                return _refusal(403, "this is about the whole server: show the server's own token")
        return await route.handler(admin, request)

    return handle


def _of_a_stranger(admin: Admin, method: str, request: web.Request) -> web.Response | None:
    """Refuses what a web page of somebody else makes a browser send here."""
    if method != "GET" and "Origin" in request.headers:
        # It could otherwise purge the store of whoever looks at it.
        return _refusal(403, "requests of web pages may not change anything")
    if request.headers.get("Sec-Fetch-Site", "") in ("cross-site", "same-site"):
        return _refusal(403, "this is another site's request")
    if admin.is_open and admin.is_local and not _is_this_machine(request.host):
        # Its name may lead anywhere by the time that its page asks again.
        return _refusal(403, "ask for 127.0.0.1 or localhost, or set a token")
    return None


def _is_this_machine(host: str) -> bool:
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _refusal(status: int, error: str) -> web.Response:
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return web.json_response({"error": error}, status=status, headers=headers)


def _readable(value: dict[str, Any]) -> dict[str, Any]:
    """JSON has no bytes: a key is shown as text where it is text, else escaped."""

    def shown(item: Any) -> Any:
        return item.decode("utf-8", "backslashreplace") if isinstance(item, bytes) else item

    return {name: shown(item) for name, item in value.items()}


async def listen(
    admin: Admin, host: str, port: int, tls: ssl.SSLContext | None = None
) -> tuple[web.AppRunner, int]:
    """Serves `admin`, over HTTPS with `tls`; its runner (the caller cleans it up) and port.

    Raises `SetupError` if the address cannot be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
    except OSError as error:
        raise SetupError(
            f"cannot listen on admin address {host}:{port}: {error.strerror}; "
            "give another --admin-port (0 takes a free one) or --admin-host"
        ) from error
    runner = web.AppRunner(make_app(admin), access_log=None, shutdown_timeout=SHUTDOWN_TIMEOUT_S)
    await runner.setup()
    await web.SockSite(runner, listener, ssl_context=tls).start()
    return runner, int(listener.getsockname()[1])
