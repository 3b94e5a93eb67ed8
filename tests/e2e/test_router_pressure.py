"""64 clients stream at once, some leave, and one of two decode servers dies."""

from __future__ import annotations

import asyncio
import collections
import random

import openai
import pytest
from router_stage import Stage, until

CLIENTS = 64
WORDS = 12


class Outcomes:
    """What the clients saw."""

    def __init__(self) -> None:
        self.counts: collections.Counter[str] = collections.Counter()
        self.wrong: list[str] = []
        self.broken: list[tuple[int, str]] = []  # words of a stream that broke, and why

    async def until_whole(self, count: int) -> None:
        while self.counts["whole"] < count:  # noqa: ASYNC110 - counted by many
            await asyncio.sleep(0.01)


async def stream_once(
    client: openai.AsyncOpenAI, prompt: str, leaves_after: int | None, outcomes: Outcomes
) -> None:
    expected = [f"{prompt}{index} " for index in range(WORDS)]
    words: list[str] = []
    try:
        async with await client.completions.create(
            model="m", prompt=prompt, stream=True, timeout=20
        ) as parts:
            async for part in parts:
                words.append(part.choices[0].text)
                if len(words) == leaves_after:
                    break
    except openai.APIError as error:
        outcomes.broken.append((len(words), repr(error)))
        outcomes.counts["broken"] += 1
    else:
        outcomes.counts["whole" if leaves_after is None else "left"] += 1
        if words != expected[:leaves_after]:
            outcomes.wrong.append(f"{prompt}: {words}")
    if words != expected[: len(words)]:
        outcomes.wrong.append(f"{prompt}: {words}")


@pytest.mark.timeout(90)
async def test_64_streaming_clients_with_cancellations_while_a_decode_dies(stage: Stage) -> None:
    await stage.open(prefills=2, decodes=2)
    for fake in (*stage.prefills, *stage.decodes):
        fake.manners.echoes = True
        fake.manners.words = WORDS
        fake.manners.word_delay_s = 0.05
    source = random.Random(11)
    outcomes = Outcomes()
    is_over = asyncio.Event()

    async def client_of_many(number: int, client: openai.AsyncOpenAI) -> None:
        turn = 0
        while not is_over.is_set():
            leaves_after = source.choice([None, None, source.randrange(1, WORDS)])
            await stream_once(client, f"c{number}t{turn}w", leaves_after, outcomes)
            turn += 1

    dying = stage.decodes[0]
    async with openai.AsyncOpenAI(base_url=f"{stage.url}/v1", api_key="k", max_retries=0) as client:
        clients = [asyncio.create_task(client_of_many(n, client)) for n in range(CLIENTS)]
        await outcomes.until_whole(CLIENTS)
        await until(lambda: dying.streaming >= CLIENTS // 4)
        open_then = len(dying.seen) - dying.given_up - dying.answered
        before = len(outcomes.broken)
        await dying.stop()
        await outcomes.until_whole(outcomes.counts["whole"] + CLIENTS)
        is_over.set()
        await asyncio.wait_for(asyncio.gather(*clients), 30)
    assert before == 0, outcomes.broken
    assert outcomes.wrong == []
    assert 0 < open_then <= CLIENTS
    # Only what was streaming from it, or on its way to it, breaks; whoever had read nothing yet
    # was given to the other one and never heard of it.
    assert 0 < outcomes.counts["broken"] <= open_then, outcomes.broken
    assert all(words > 0 for words, _ in outcomes.broken), outcomes.broken
    assert outcomes.counts["left"] > CLIENTS / 8
    counters = await stage.counters()
    assert counters["infinistore_router_in_flight"] == 0
    alive = stage.decodes[1]
    await until(lambda: len(alive.seen) == alive.answered + alive.given_up)  # none for nobody
    assert alive.given_up > 0
