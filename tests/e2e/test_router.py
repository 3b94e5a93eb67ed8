"""The router between a client and fake vLLM servers, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import aiohttp
import openai
import pytest
from fake_vllm import TRANSFER
from router_stage import SLOW_PROBES, until, until_up

if TYPE_CHECKING:
    pass


async def test_prefill_comes_first_and_decode_gets_what_it_said(stage):
    await stage.open()
    status, answer = await stage.complete(stream=False, min_tokens=2)
    assert status == 200
    assert answer["choices"][0]["text"].startswith("d0")
    prefill, decode = stage.prefills[0].seen[0], stage.decodes[0].seen[0]
    assert prefill.body == {"model": "m", "prompt": "once upon", "max_tokens": 1, "stream": False}
    assert decode.body == {
        "model": "m",
        "prompt": "once upon",
        "max_tokens": 8,
        "min_tokens": 2,
        "stream": False,
        "kv_transfer_params": TRANSFER,
    }


async def test_one_request_id_for_prefill_decode_and_client(stage):
    await stage.open()
    url = f"{stage.url}/v1/completions"
    given = {"X-Request-Id": "abc-1", "Authorization": "Bearer t", "Cookie": "c=1"}
    async with stage.http.post(url, json={"prompt": "a"}, headers=given) as response:
        assert response.headers["X-Request-Id"] == "abc-1"
    async with stage.http.post(url, json={"prompt": "a"}) as response:
        made = response.headers["X-Request-Id"]
    for fake in (stage.prefills[0], stage.decodes[0]):
        assert [seen.headers["X-Request-Id"] for seen in fake.seen] == ["abc-1", made]
    first = stage.decodes[0].seen[0].headers
    assert first["Authorization"] == "Bearer t"
    assert "Cookie" not in first


async def test_openai_client_completions_chat_and_streams(stage):
    await stage.open()
    async with openai.AsyncOpenAI(base_url=f"{stage.url}/v1", api_key="k", max_retries=0) as client:
        models = await client.models.list()
        assert [model.id for model in models.data] == ["d0"]
        whole = await client.completions.create(model="m", prompt="a", max_tokens=4)
        assert whole.choices[0].text == "d00 d01 d02 d03 d04"
        parts = await client.completions.create(model="m", prompt="a", stream=True)
        text = "".join([part.choices[0].text async for part in parts])
        assert text == "d00 d01 d02 d03 d04 "
        messages = [{"role": "user", "content": "h\u00e9 \u4f60\u597d \U0001f642"}]
        chat = await client.chat.completions.create(
            model="m", messages=messages, max_completion_tokens=9
        )
        assert chat.choices[0].message.content == "d00 d01 d02 d03 d04"
        deltas = await client.chat.completions.create(
            model="m", messages=messages, stream=True, stream_options={"include_usage": True}
        )
        assert "".join([d.choices[0].delta.content async for d in deltas]) == text
    chats = [seen for seen in stage.prefills[0].seen if seen.path == "/v1/chat/completions"]
    assert [seen.body["max_tokens"] for seen in chats] == [1, 1]
    assert chats[0].body["max_completion_tokens"] == 1
    assert "stream_options" not in chats[1].body
    assert chats[0].body["messages"] == messages


async def test_a_stream_arrives_as_it_is_made(stage):
    await stage.open()
    stage.decodes[0].manners.word_delay_s = 0.2
    request = {"prompt": "a", "stream": True}
    async with stage.http.post(f"{stage.url}/v1/completions", json=request) as response:
        assert response.headers["Content-Type"] == "text/event-stream"
        arrivals = [
            time.monotonic() async for line in response.content if line.startswith(b"data: {")
        ]
    assert len(arrivals) == 5
    assert arrivals[-1] - arrivals[0] > 0.5


@pytest.mark.parametrize("stream", [False, True])
async def test_a_dead_prefill_costs_only_the_speed_up(stage, stream):
    await stage.open(**SLOW_PROBES)
    await stage.prefills[0].stop()
    url = f"{stage.url}/v1/completions"
    for _ in range(2):
        async with stage.http.post(url, json={"prompt": "a", "stream": stream}) as response:
            assert response.status == 200
            assert b"d04" in await response.read()
    assert [s.body for s in stage.decodes[0].seen] == [{"prompt": "a", "stream": stream}] * 2
    counters = await stage.counters()
    name = "infinistore_router_prefill_requests_total"
    # The second request does not even try: the server is known to be down.
    assert counters[f'{name}{{upstream="{stage.prefills[0].url}",outcome="unreachable"}}'] == 1
    assert (await stage.health())["status"] == "degraded"


async def test_an_unreachable_prefill_is_passed_over_for_the_next(stage):
    await stage.open(prefills=2, **SLOW_PROBES)
    await stage.prefills[0].stop()
    for _ in range(3):
        status, _ = await stage.complete()
        assert status == 200
    assert len(stage.prefills[1].seen) == 3
    assert all(s.body["kv_transfer_params"] == TRANSFER for s in stage.decodes[0].seen)


@pytest.mark.parametrize("code", [500, 503])
async def test_a_failing_prefill_is_left_alone_until_a_probe_brings_it_back(stage, code):
    await stage.open()
    stage.prefills[0].manners.status = code
    stage.prefills[0].manners.health_status = 503
    assert (await stage.complete())[0] == 200
    assert "kv_transfer_params" not in stage.decodes[0].seen[0].body
    await until_up(stage, "prefill", ["down"])
    assert (await stage.complete())[0] == 200
    assert len(stage.prefills[0].seen) == 1
    stage.prefills[0].manners.status = stage.prefills[0].manners.health_status = 200
    await until_up(stage, "prefill", ["up"])
    assert (await stage.complete())[0] == 200
    assert stage.decodes[0].seen[-1].body["kv_transfer_params"] == TRANSFER


async def test_a_restarted_prefill_is_used_again(stage):
    await stage.open()
    await stage.prefills[0].stop()
    await until_up(stage, "prefill", ["down"])
    await stage.prefills[0].start()
    await until_up(stage, "prefill", ["up"])
    assert (await stage.complete())[0] == 200
    assert stage.decodes[0].seen[-1].body["kv_transfer_params"] == TRANSFER


async def test_a_slow_prefill_is_waited_for_no_longer_than_its_deadline(stage):
    await stage.open(prefill_timeout_s=0.3, **SLOW_PROBES)
    stage.prefills[0].manners.delay_s = 10
    began_s = time.monotonic()
    assert (await stage.complete())[0] == 200
    assert 0.25 < time.monotonic() - began_s < 3
    await until(lambda: stage.prefills[0].given_up == 1)
    began_s = time.monotonic()
    assert (await stage.complete())[0] == 200
    assert time.monotonic() - began_s < 0.25  # down: not asked again


async def test_requests_that_wait_for_a_hanging_prefill_go_on_when_probes_find_it_dead(stage):
    await stage.open(prefill_timeout_s=30)
    stage.prefills[0].manners.delay_s = stage.prefills[0].manners.health_delay_s = 30
    began_s = time.monotonic()
    answers = await asyncio.gather(*(stage.complete() for _ in range(4)))
    assert time.monotonic() - began_s < 5
    assert [status for status, _ in answers] == [200] * 4
    await until(lambda: stage.prefills[0].given_up == 4)


async def test_a_prefill_that_refuses_is_healthy_and_decode_has_the_word(stage):
    await stage.open()
    for fake in (stage.prefills[0], stage.decodes[0]):
        fake.manners.status = 400
    status, answer = await stage.complete()
    assert (status, answer["error"]["message"]) == (400, "d0 says no")
    assert (await stage.health())["status"] == "ok"
    assert len(stage.decodes[0].seen) == 1


async def test_a_prefill_answer_without_bound_is_dropped(stage):
    await stage.open(answer_bytes_max=100_000, **SLOW_PROBES)
    stage.prefills[0].manners.answer_bytes = 200_000
    assert (await stage.complete())[0] == 200
    assert "kv_transfer_params" not in stage.decodes[0].seen[0].body


async def test_several_prompts_take_no_transfer_params(stage):
    await stage.open()
    assert (await stage.complete(prompt=["a", "b"]))[0] == 200
    assert stage.prefills[0].seen[0].body["prompt"] == ["a", "b"]
    assert "kv_transfer_params" not in stage.decodes[0].seen[0].body


@pytest.mark.parametrize("stream", [False, True])
async def test_a_dead_decode_is_replaced(stage, stream):
    await stage.open(decodes=2, **SLOW_PROBES)
    await stage.decodes[0].stop()
    url = f"{stage.url}/v1/completions"
    for _ in range(3):
        async with stage.http.post(url, json={"prompt": "a", "stream": stream}) as response:
            assert response.status == 200
            assert b"d14" in await response.read()


async def test_a_decode_that_dies_before_its_first_word_is_replaced(stage):
    await stage.open(decodes=2, **SLOW_PROBES)
    stage.decodes[0].manners.break_after = 0
    url = f"{stage.url}/v1/completions"
    async with stage.http.post(url, json={"prompt": "a", "stream": True}) as response:
        text = await response.text()
    assert "d14" in text
    assert "error" not in text
    assert len(stage.decodes[0].seen) == 1


async def test_no_decode_at_all_is_a_clear_503(stage):
    await stage.open(decodes=2)
    for fake in stage.decodes:
        await fake.stop()
    status, answer = await stage.complete()
    assert status == 503
    assert answer["error"]["type"] == "service_unavailable"
    assert "no decode server answered" in answer["error"]["message"]
    await until_up(stage, "decode", ["down", "down"])
    health = await stage.health()
    assert (health["code"], health["status"]) == (503, "unavailable")
    await stage.decodes[1].start()
    await until_up(stage, "decode", ["down", "up"])
    assert (await stage.complete())[0] == 200


async def test_a_decode_known_as_down_is_still_tried_when_there_is_no_other(stage):
    await stage.open(**SLOW_PROBES)
    await stage.decodes[0].stop()
    assert (await stage.complete())[0] == 503
    await stage.decodes[0].start()
    assert (await stage.complete())[0] == 200


async def test_the_last_decodes_error_is_passed_on(stage):
    await stage.open(decodes=2)
    for fake in stage.decodes:
        fake.manners.status = 500
    status, answer = await stage.complete()
    assert status == 500
    assert answer["error"]["message"].endswith("says no")
    assert [len(fake.seen) for fake in stage.decodes] == [1, 1]
    # A 500 may be the request's own doing; the probes still find both well.
    assert (await stage.health())["status"] == "ok"


async def test_a_stream_that_breaks_ends_in_an_error_event(stage):
    await stage.open()
    stage.decodes[0].manners.break_after = 2
    async with openai.AsyncOpenAI(base_url=f"{stage.url}/v1", api_key="k", max_retries=0) as client:
        parts = await client.completions.create(model="m", prompt="a", stream=True)
        words = [(await anext(parts)).choices[0].text for _ in range(2)]
        with pytest.raises(openai.APIError, match="decode server failed"):
            await anext(parts)
    assert words == ["d00 ", "d01 "]
    assert (await stage.counters())['infinistore_router_requests_total{outcome="failed"}'] == 1


async def test_a_stream_cut_within_an_event_never_looks_whole(stage):
    await stage.open()
    stage.decodes[0].manners.break_after = 2
    stage.decodes[0].manners.cut_event = True
    url = f"{stage.url}/v1/completions"
    async with stage.http.post(url, json={"prompt": "a", "stream": True}) as response:
        with pytest.raises(aiohttp.ClientError):
            await response.read()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_ends_the_request_at_decode(stage, stream):
    await stage.open()
    stage.decodes[0].manners.words = 1000
    stage.decodes[0].manners.word_delay_s = 0.02
    if not stream:
        stage.decodes[0].manners.delay_s = 20
    url = f"{stage.url}/v1/completions"
    with contextlib.suppress(TimeoutError, asyncio.TimeoutError):
        async with stage.http.post(
            url,
            json={"prompt": "a", "stream": stream},
            timeout=aiohttp.ClientTimeout(total=0.3),
        ) as response:
            await response.read()
    await until(lambda: stage.decodes[0].given_up == 1)
    counters = await stage.counters()
    assert counters['infinistore_router_requests_total{outcome="cancelled"}'] == 1
    assert counters["infinistore_router_in_flight"] == 0
    rows = [value for name, value in counters.items() if "upstream_in_flight" in name]
    assert rows == [0, 0]


async def test_a_client_that_leaves_ends_the_request_at_prefill(stage):
    await stage.open(prefill_timeout_s=20)
    stage.prefills[0].manners.delay_s = 20
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(stage.complete(), 0.3)
    await until(lambda: stage.prefills[0].given_up == 1)
    assert stage.decodes[0].seen == []
    assert (await stage.health())["prefill"][0]["standing"] == "up"


async def test_a_client_that_does_not_read_is_given_up(stage):
    await stage.open(client_stall_s=0.3)
    stage.decodes[0].manners.words = 1_000_000
    reader, writer = await asyncio.open_connection("127.0.0.1", int(stage.url.rsplit(":", 1)[1]))
    body = b'{"prompt": "a", "stream": true}'
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s"
        % (len(body), body)
    )
    await reader.read(10)
    await until(lambda: stage.decodes[0].given_up == 1, 15)
    writer.close()


@pytest.mark.parametrize(
    ("raw", "status", "message"),
    [
        (b"{", 400, "no JSON"),
        (b"[]", 400, "not an object"),
        (b'{"prompt": "' + b"a" * 70_000 + b'"}', 413, "larger than 65536 bytes"),
    ],
)
async def test_bad_bodies_are_refused_here(stage, raw, status, message):
    await stage.open(request_bytes_max=65536)
    async with stage.http.post(f"{stage.url}/v1/completions", data=raw) as response:
        assert response.status == status
        assert message in (await response.json())["error"]["message"]
    assert stage.prefills[0].seen == stage.decodes[0].seen == []


async def test_a_request_past_its_whole_time_is_a_504(stage):
    await stage.open(request_timeout_s=0.3)
    stage.decodes[0].manners.delay_s = 10
    status, answer = await stage.complete()
    assert (status, answer["error"]["type"]) == (504, "timeout_error")


async def test_a_stream_past_its_whole_time_ends_in_an_error_event(stage):
    await stage.open(request_timeout_s=0.5)
    stage.decodes[0].manners.words = 1000
    stage.decodes[0].manners.word_delay_s = 0.05
    url = f"{stage.url}/v1/completions"
    async with stage.http.post(url, json={"prompt": "a", "stream": True}) as response:
        last = (await response.read()).strip().rsplit(b"\n\n", 1)[1]
    assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == 504
    await until(lambda: stage.decodes[0].given_up == 1)


async def test_past_the_bound_in_flight_requests_are_told_so(stage):
    await stage.open(in_flight_max=2)
    stage.decodes[0].manners.delay_s = 0.5
    answers = await asyncio.gather(*(stage.complete() for _ in range(3)))
    assert sorted(status for status, _ in answers) == [200, 200, 429]


async def test_requests_spread_over_the_servers(stage):
    await stage.open(prefills=2, decodes=2)
    for fake in (*stage.prefills, *stage.decodes):
        fake.manners.delay_s = 0.1
    await asyncio.gather(*(stage.complete() for _ in range(8)))
    assert [len(f.seen) for f in (*stage.prefills, *stage.decodes)] == [4, 4, 4, 4]


PREFIX = "s" * 5000


async def test_requests_that_begin_alike_go_to_the_servers_that_know_their_prefix(stage):
    await stage.open(prefills=2, decodes=2)
    for turn in range(6):
        await stage.complete(prompt=PREFIX + str(turn))
        await stage.complete(prompt=f"other {turn}")
    for fakes in (stage.prefills, stage.decodes):
        long = [sum(seen.body["prompt"].startswith(PREFIX) for seen in f.seen) for f in fakes]
        assert sorted(long) == [0, 6]
        assert all(len(fake.seen) >= 3 for fake in fakes)  # the rest goes where there is less
    counters = await stage.counters()
    for role in ("prefill", "decode"):
        assert counters[f'infinistore_router_prefix_choices_total{{role="{role}"}}'] == 5


async def test_a_prefix_is_no_reason_to_queue(stage):
    await stage.open(prefills=0, decodes=2, prefix_slack=2)
    for fake in stage.decodes:
        fake.manners.delay_s = 0.5
    await asyncio.gather(*(stage.complete(prompt=PREFIX) for _ in range(12)))
    counts = sorted(len(fake.seen) for fake in stage.decodes)
    assert counts[0] >= 5
    assert counts[1] >= counts[0]


async def test_a_restarted_server_is_not_taken_for_warm(stage):
    await stage.open(prefills=0, decodes=2, **SLOW_PROBES)
    await stage.complete(prompt=PREFIX)
    warm, cold = sorted(stage.decodes, key=lambda fake: -len(fake.seen))
    await warm.stop()
    await stage.complete(prompt=PREFIX)
    assert len(cold.seen) == 1
    await warm.start()
    await stage.complete(prompt=PREFIX)
    assert (len(warm.seen), len(cold.seen)) == (1, 2)


async def test_embeddings_are_passed_on_to_one_server(stage):
    await stage.open(prefills=1, decodes=2)
    async with openai.AsyncOpenAI(base_url=f"{stage.url}/v1", api_key="k", max_retries=0) as client:
        answer = await client.embeddings.create(
            model="m", input=["a", "b"], encoding_format="float"
        )
    assert answer.data[0].embedding == [0.5, 2.0]
    assert stage.prefills[0].seen == []
    assert sum(len(fake.seen) for fake in stage.decodes) == 1


async def test_the_access_log_has_a_line_for_each_request_and_nothing_of_its_content(stage, caplog):
    caplog.set_level("INFO", logger="infinistore.router.access")
    await stage.open(access_log=True)
    given = {"X-Request-Id": "abc-1", "Authorization": "Bearer secret"}
    body = {"model": "m", "prompt": "secret"}
    async with stage.http.post(f"{stage.url}/v1/completions", json=body, headers=given) as answer:
        await answer.read()
    async with stage.http.post(f"{stage.url}/v1/completions", data=b"{secret") as answer:
        assert answer.status == 400
    lines = [json.loads(r.getMessage()) for r in caplog.records if r.name.endswith(".access")]
    assert [line["outcome"] for line in lines] == ["ok", "invalid"]
    assert lines[0]["request_id"] == "abc-1"
    assert (lines[0]["prefill"], lines[0]["decode"]) == (
        stage.prefills[0].url,
        stage.decodes[0].url,
    )
    assert lines[0]["total_s"] >= lines[0]["first_byte_s"] >= lines[0]["prefill_s"] > 0
    assert "secret" not in caplog.text


async def test_models_come_from_whoever_answers(stage):
    await stage.open()
    await stage.decodes[0].stop()
    async with stage.http.get(f"{stage.url}/v1/models") as response:
        assert (await response.json())["data"][0]["id"] == "p0"
    await stage.prefills[0].stop()
    async with stage.http.get(f"{stage.url}/v1/models") as response:
        assert response.status == 503


ROUTER = [sys.executable, "-m", "infinistore", "router"]


def test_the_command_serves_and_ends_on_sigterm():
    arguments = ["--port", "0", "--prefill", "127.0.0.1:9", "--decode", "127.0.0.1:9/v1"]
    with subprocess.Popen([*ROUTER, *arguments], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert line.startswith("infinistore router ready http://127.0.0.1:")
            assert line.endswith("prefill=1 decode=1\n")
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=10) == 0


def test_the_command_says_what_it_cannot_do():
    done = subprocess.run(ROUTER, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert "give at least one --decode URL" in done.stderr
    assert "Traceback" not in done.stderr
