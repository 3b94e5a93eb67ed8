"""How a request is rewritten for prefill and for decode, and how errors look: pure."""

from __future__ import annotations

import json
from typing import Any

JsonObject = dict[str, Any]

# They change what is generated or how it is sent, never the prompt's tokens, and either contradict
# "one token, no stream" or make prefill do work whose result is thrown away.
_NOT_FOR_PREFILL = (
    "stream_options",
    "min_tokens",
    "best_of",
    "prompt_logprobs",
    "logprobs",
    "top_logprobs",
    "echo",
    "response_format",
    "structured_outputs",
)


def parse_request(raw: bytes) -> JsonObject:
    """The JSON object of a request's body; `ValueError` says what is wrong with it."""
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the body is no JSON: {error}") from error
    if not isinstance(body, dict):
        raise ValueError(f"the body is a JSON {type(body).__name__}, not an object")
    return body


def is_stream(body: JsonObject) -> bool:
    """Whether the client asked for server-sent events."""
    return body.get("stream") is True


def prefill_body(body: JsonObject) -> JsonObject:
    """The same prompt with one token to generate and no stream."""
    prefill = {name: value for name, value in body.items() if name not in _NOT_FOR_PREFILL}
    prefill["stream"] = False
    prefill["max_tokens"] = 1
    if "max_completion_tokens" in body:
        prefill["max_completion_tokens"] = 1
    if "n" in body:
        prefill["n"] = 1
    return prefill


def decode_body(body: JsonObject, transfer: JsonObject | None) -> JsonObject:
    """The client's request with what prefill said of its saves, over what the client said."""
    if not transfer:
        return body
    own = body.get("kv_transfer_params")
    merged = {**own, **transfer} if isinstance(own, dict) else transfer
    return {**body, "kv_transfer_params": merged}


def is_one_prompt(body: JsonObject) -> bool:
    """Whether the request holds one prompt: text, token ids, or a chat's messages.

    Of several prompts in one request vLLM's answer describes the saves of the first alone.
    """
    prompt = body.get("prompt")
    if not isinstance(prompt, list) or len(prompt) == 1:
        return True
    return all(isinstance(token, int) for token in prompt)


def transfer_params(answer: bytes) -> JsonObject | None:
    """`kv_transfer_params` of prefill's answer; None if there is none or it makes no sense."""
    try:
        parsed = json.loads(answer)
    except (ValueError, RecursionError):
        return None
    params = parsed.get("kv_transfer_params") if isinstance(parsed, dict) else None
    return params if isinstance(params, dict) else None


def error_body(message: str, kind: str, status: int) -> JsonObject:
    """An error as OpenAI's clients expect it."""
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}


def error_event(message: str, kind: str, status: int) -> bytes:
    """The same as a server-sent event, for a stream that already began."""
    return b"data: " + json.dumps(error_body(message, kind, status)).encode() + b"\n\n"
