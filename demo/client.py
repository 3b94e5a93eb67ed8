"""Asking a vLLM server: tokens, time to the first one, and what its caches gave."""

from __future__ import annotations

import dataclasses
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from demo.prompts import Prompt

_TIMEOUT_S = 300.0
_SETTLE_S = 10.0
_LINK_S = 60.0


class AskError(RuntimeError):
    """A server answered something else than tokens."""


@dataclasses.dataclass(frozen=True, slots=True)
class Reply:
    """The answer to one prompt."""

    token_ids: tuple[int, ...]
    text: str
    ttft_ms: float
    prompt_token_ids: tuple[int, ...]

    @property
    def prompt_tokens(self) -> int:
        """How many tokens the prompt is."""
        return len(self.prompt_token_ids)


@dataclasses.dataclass(frozen=True, slots=True)
class Hits:
    """Prompt tokens that a server found: in its own cache, and in the store."""

    local: int
    external: int


@dataclasses.dataclass(frozen=True, slots=True)
class _Counters:
    """vLLM's counters; a request's tokens are `queried` once, when it is admitted."""

    queried: int
    local: int
    external: int


def post(url: str, body: dict[str, Any] | None = None) -> Any:
    """POSTs JSON and returns the answer's JSON, or None if it is empty."""
    with _open(url, body) as response:
        raw = response.read()
    return json.loads(raw) if raw else None


def get(url: str) -> Any:
    """GETs JSON."""
    with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as response:
        return json.load(response)


def _open(url: str, body: dict[str, Any] | None) -> Any:
    request = urllib.request.Request(
        url,
        data=json.dumps(body or {}).encode(),
        headers={"Content-Type": "application/json"},
        method="POST",
    )
    try:
        return urllib.request.urlopen(request, timeout=_TIMEOUT_S)
    except urllib.error.HTTPError as error:
        raise AskError(f"{url}: HTTP {error.code}: {error.read(500)!r}") from error


def ask(url: str, prompt: Prompt, max_tokens: int) -> Reply:
    """Streams a greedy completion."""
    content = prompt.content
    body = {
        "model": "demo",
        "prompt": list(content) if isinstance(content, tuple) else content,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,  # every answer has as many tokens to compare
        "stream": True,
        "return_token_ids": True,
    }
    token_ids: list[int] = []
    text: list[str] = []
    prompt_token_ids: tuple[int, ...] = ()
    first_s = 0.0
    began_s = time.monotonic()
    with _open(url + "/v1/completions", body) as response:
        for event in _events(response):
            if "error" in event:
                raise AskError(f"{url}: {event['error']}")
            for choice in event["choices"]:
                prompt_token_ids = tuple(choice.get("prompt_token_ids") or prompt_token_ids)
                if choice.get("token_ids"):
                    first_s = first_s or time.monotonic()
                    token_ids += choice["token_ids"]
                    text.append(choice["text"])
    if len(token_ids) != max_tokens:
        raise AskError(f"{url}: {len(token_ids)} tokens instead of {max_tokens}")
    return Reply(tuple(token_ids), "".join(text), (first_s - began_s) * 1e3, prompt_token_ids)


def _events(response: Any) -> Iterator[dict[str, Any]]:
    for line in response:
        if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
            yield json.loads(line[6:])


def ask_and_count(
    url: str, counted_url: str, prompt: Prompt, max_tokens: int
) -> tuple[Reply, Hits]:
    """Asks at `url`, and says what the server at `counted_url` (the same, or one behind a router)
    found of the prompt. Only for requests one at a time: counters are of the whole server."""
    before = _counters(counted_url)
    reply = ask(url, prompt, max_tokens)
    deadline_s = time.monotonic() + _SETTLE_S
    # The last step's counters may come just after the last token.
    while (after := _counters(counted_url)).queried < before.queried + reply.prompt_tokens:
        if time.monotonic() > deadline_s:
            raise AskError(
                f"{counted_url} counted {after.queried - before.queried} of "
                f"{reply.prompt_tokens} prompt tokens"
            )
        time.sleep(0.02)
    if after.queried != before.queried + reply.prompt_tokens:
        raise AskError(f"{counted_url} counted other requests beside {prompt.name!r}")
    return reply, Hits(after.local - before.local, after.external - before.external)


def _counters(url: str) -> _Counters:
    with urllib.request.urlopen(url + "/metrics", timeout=_TIMEOUT_S) as response:
        lines = response.read().decode().splitlines()

    def total(name: str) -> int:
        start = (f"vllm:{name}_total{{", f"vllm:{name}{{")
        return int(sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(start)))

    return _Counters(
        queried=total("prefix_cache_queries"),
        local=total("prefix_cache_hits"),
        external=total("external_prefix_cache_hits"),
    )


def reset_prefix_cache(url: str) -> None:
    """Makes a vLLM server forget its own cache; the store keeps everything."""
    deadline_s = time.monotonic() + _SETTLE_S
    while not post(url + "/reset_prefix_cache")["success"]:  # blocks of a late save are still held
        if time.monotonic() > deadline_s:
            raise AskError(f"{url} could not reset its prefix cache")
        time.sleep(0.1)


def wait_until_loading(url: str, prompt: Prompt) -> None:
    """Asks `prompt` (of one whole block at least) until a part of it comes from the store.

    A vLLM server answers before its connector has read the weights for their digest: what is asked
    before is computed, which is right for users and wrong for a test that demands every hit. It
    also pays what vLLM initialises at its first request.
    """
    deadline_s = time.monotonic() + _LINK_S
    while True:
        _, hits = ask_and_count(url, url, prompt, 2)
        if hits.external:
            return
        if time.monotonic() > deadline_s:
            raise AskError(f"{url} loaded nothing of {prompt.name!r} from the store")
        time.sleep(0.2)
        reset_prefix_cache(url)
