"""FakeVllm: an OpenAI-compatible server in the test's event loop, that fails on request."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from typing import TYPE_CHECKING, Any

from aiohttp import web

if TYPE_CHECKING:
    from collections.abc import Mapping

TRANSFER = {"infinistore": {"last_key": "00ff", "blocks": 3}}


@dataclasses.dataclass
class Manners:
    """What the fake does with a request; tests change it while it runs."""

    status: int = 200
    delay_s: float = 0.0
    words: int = 5
    word_delay_s: float = 0.0
    break_after: int | None = None  # words sent before the connection is cut
    cut_event: bool = False  # cut within an event rather than between two
    health_status: int = 200
    health_delay_s: float = 0.0
    answer_bytes: int = 0  # padding of a whole answer
    echoes: bool = False  # words of the prompt, not of the server's name


@dataclasses.dataclass
class Seen:
    """A request as it arrived."""

    path: str
    body: dict[str, Any]
    headers: Mapping[str, str]


class FakeVllm:
    """One server; `url` is valid while it is started."""

    def __init__(self, name: str) -> None:
        """Not listening yet."""
        self.name = name
        self.manners = Manners()
        self.seen: list[Seen] = []
        self.probes = 0
        self.given_up = 0  # requests whose client went away
        self.answered = 0
        self.streaming = 0  # streams that have begun
        self.url = ""
        self._port = 0
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Listens; after a `stop`, on the same port again."""
        app = web.Application()
        app.router.add_post("/v1/embeddings", self._embed)
        app.router.add_post("/v1/{tail:.*}", self._generate)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        self._runner = web.AppRunner(
            app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port, reuse_address=True).start()
        self._port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self._port}"

    async def stop(self) -> None:
        """Listens no more, and cuts what is open."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _health(self, _request: web.Request) -> web.Response:
        self.probes += 1
        await asyncio.sleep(self.manners.health_delay_s)
        return web.Response(status=self.manners.health_status)

    async def _models(self, _request: web.Request) -> web.Response:
        return web.json_response(
            {"object": "list", "data": [{"id": self.name, "object": "model", "created": 1}]}
        )

    async def _embed(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.seen.append(Seen(request.path, body, request.headers))
        row = {"object": "embedding", "index": 0, "embedding": [0.5, float(len(body["input"]))]}
        usage = {"prompt_tokens": 1, "total_tokens": 1}
        return web.json_response(
            {"object": "list", "data": [row], "model": self.name, "usage": usage}
        )

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.seen.append(Seen(request.path, body, request.headers))
        try:
            await asyncio.sleep(self.manners.delay_s)
            response = await self._answer(request, body)
        except (asyncio.CancelledError, ConnectionResetError):
            self.given_up += 1
            raise
        self.answered += 1
        return response

    async def _answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        manners = self.manners
        if manners.status != 200:
            return web.json_response(
                {"error": {"message": f"{self.name} says no", "code": manners.status}},
                status=manners.status,
            )
        chat = request.path.endswith("chat/completions")
        word = str(body["prompt"]) if manners.echoes else self.name
        if body.get("stream") is True:
            return await self._stream(request, chat, word)
        text = " ".join(f"{word}{i}" for i in range(manners.words))
        answer = {
            **_head(chat, self.name, stream=False),
            "choices": [_choice(chat, text, "stop", stream=False)],
            "usage": {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10},
            "kv_transfer_params": TRANSFER,
        }
        if manners.answer_bytes:
            answer["padding"] = "x" * manners.answer_bytes
        return web.json_response(answer)

    async def _stream(self, request: web.Request, chat: bool, word: str) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        self.streaming += 1
        try:
            return await self._words(request, response, chat, word)
        finally:
            self.streaming -= 1

    async def _words(
        self, request: web.Request, response: web.StreamResponse, chat: bool, word: str
    ) -> web.StreamResponse:
        manners = self.manners
        for index in range(manners.words):
            if index == manners.break_after:
                if manners.cut_event:
                    await response.write(b'data: {"id": "half')
                    await asyncio.sleep(0.05)
                with contextlib.suppress(AttributeError):
                    request.transport.abort()  # type: ignore[union-attr]
                return response
            event = {
                **_head(chat, self.name, stream=True),
                "choices": [_choice(chat, f"{word}{index} ", None, stream=True)],
            }
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
            await asyncio.sleep(manners.word_delay_s)
        await response.write(b"data: [DONE]\n\n")
        return response


def _head(chat: bool, model: str, *, stream: bool) -> dict[str, Any]:
    kind = "text_completion"
    if chat:
        kind = "chat.completion.chunk" if stream else "chat.completion"
    return {"id": "x-1", "object": kind, "created": 1, "model": model}


def _choice(chat: bool, text: str, finish: str | None, *, stream: bool) -> dict[str, Any]:
    common = {"index": 0, "finish_reason": finish, "logprobs": None}
    if not chat:
        return {**common, "text": text}
    return {**common, "delta" if stream else "message": {"role": "assistant", "content": text}}
