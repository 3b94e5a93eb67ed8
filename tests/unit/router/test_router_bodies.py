"""Rewriting requests for prefill and decode."""

from __future__ import annotations

import json

import pytest

from infinistore.router import bodies

CHAT = {
    "model": "m",
    "messages": [{"role": "user", "content": "hi"}],
    "tools": [{"type": "function"}],
    "stream": True,
    "stream_options": {"include_usage": True},
    "min_tokens": 4,
    "max_completion_tokens": 64,
    "n": 3,
    "logprobs": True,
    "top_logprobs": 5,
}


def test_prefill_gets_the_prompt_and_one_token_to_make():
    body = bodies.prefill_body(CHAT)
    assert body == {
        "model": "m",
        "messages": CHAT["messages"],
        "tools": CHAT["tools"],  # they are part of a chat's prompt
        "stream": False,
        "max_tokens": 1,
        "max_completion_tokens": 1,
        "n": 1,
    }


def test_a_completion_needs_no_max_completion_tokens():
    body = bodies.prefill_body({"prompt": "a", "max_tokens": 9, "temperature": 0})
    assert body == {"prompt": "a", "max_tokens": 1, "temperature": 0, "stream": False}


def test_rewriting_leaves_the_clients_body_alone():
    before = json.dumps(CHAT)
    bodies.prefill_body(CHAT)
    bodies.decode_body(CHAT, {"infinistore": {"last_key": "ab", "blocks": 3}})
    assert json.dumps(CHAT) == before


def test_decode_gets_the_request_with_what_prefill_said():
    transfer = {"infinistore": {"last_key": "ab", "blocks": 3}}
    assert bodies.decode_body({"prompt": "a"}, transfer) == {
        "prompt": "a",
        "kv_transfer_params": transfer,
    }
    own = {"prompt": "a", "kv_transfer_params": {"mine": 1, "infinistore": 0}}
    assert bodies.decode_body(own, transfer)["kv_transfer_params"] == {"mine": 1, **transfer}
    assert (
        bodies.decode_body({**own, "kv_transfer_params": 7}, transfer)["kv_transfer_params"]
        == transfer
    )


@pytest.mark.parametrize("transfer", [None, {}])
def test_decode_gets_the_request_as_it_is_when_prefill_said_nothing(transfer):
    body = {"prompt": "a", "stream": True}
    assert bodies.decode_body(body, transfer) is body


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b'{"kv_transfer_params": {"a": 1}}', {"a": 1}),
        (b'{"kv_transfer_params": null}', None),
        (b'{"kv_transfer_params": [1]}', None),
        (b"{}", None),
        (b"[]", None),
        (b"not json", None),
        (b"\xff\xfe", None),
        (b"[" * 100_000, None),
    ],
)
def test_only_an_object_of_transfer_params_counts(answer, expected):
    assert bodies.transfer_params(answer) == expected


@pytest.mark.parametrize("raw", [b"", b"{", b"[1]", b'"text"', b"\xff", b"[" * 100_000])
def test_a_body_that_is_no_object_is_refused_with_a_reason(raw):
    with pytest.raises(ValueError, match="the body is"):
        bodies.parse_request(raw)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("text", True),
        ([1, 2, 3], True),
        (["one"], True),
        ([[1, 2]], True),
        (["one", "two"], False),
        ([[1], [2]], False),
        ([], True),
    ],
)
def test_several_prompts_in_one_request_are_seen(prompt, expected):
    assert bodies.is_one_prompt({"prompt": prompt}) is expected
    assert bodies.is_one_prompt({"messages": []}) is True


def test_only_true_means_stream():
    assert bodies.is_stream({"stream": True})
    assert not bodies.is_stream({"stream": 1})
    assert not bodies.is_stream({})


def test_an_error_event_is_one_event():
    event = bodies.error_event("a\nb", "upstream_error", 502)
    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    assert event.count(b"\n") == 2
    assert json.loads(event[6:])["error"] == {
        "message": "a\nb",
        "type": "upstream_error",
        "param": None,
        "code": 502,
    }
