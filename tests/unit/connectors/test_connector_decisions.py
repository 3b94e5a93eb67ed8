"""The scheduler side's choices, with plain values."""

from __future__ import annotations

import pytest

from infinistore.connectors.vllm.decisions import (
    LookupView,
    Verdict,
    announced_blocks,
    announcement,
    external_tokens,
    first_to_save,
    judge,
    last_to_save,
    usable_blocks,
)

HASHES = [bytes([n]) * 32 for n in range(10)]


@pytest.mark.parametrize(
    ("tokens", "blocks"), [(0, 0), (1, 0), (32, 0), (33, 1), (64, 1), (65, 2), (577, 18)]
)
def test_the_last_token_is_always_left_to_compute(tokens: int, blocks: int) -> None:
    assert usable_blocks(tokens, 32) == blocks


@pytest.mark.parametrize(
    ("hits", "computed", "tokens"), [(10, 0, 320), (10, 64, 256), (10, 320, 0), (3, 320, 0)]
)
def test_external_tokens_are_those_beyond_the_engines_own(
    hits: int, computed: int, tokens: int
) -> None:
    assert external_tokens(hits, computed, 32) == tokens


@pytest.mark.parametrize(
    ("computed", "in_store", "first"),
    [
        (320, 10, 10),  # all there
        (320, 4, 4),  # the engine has what the store has not
        (96, 10, 3),  # the store has more than the engine took: it is computed again
        (320, None, 10),  # nobody knows
        (0, None, 0),
    ],
)
def test_what_the_store_lacks_is_offered_again(
    computed: int, in_store: int | None, first: int
) -> None:
    assert first_to_save(computed, 32, in_store) == first


def test_a_block_is_saved_when_it_is_full_and_its_tokens_are_known() -> None:
    assert last_to_save(known_tokens=100, tokens_after_step=64, block_tokens=32) == 2
    assert last_to_save(known_tokens=100, tokens_after_step=95, block_tokens=32) == 2
    # Computed ahead of what is known: a sampled token that has not come back yet.
    assert last_to_save(known_tokens=63, tokens_after_step=64, block_tokens=32) == 1


def view(done: bool = True, failed: bool = False, blocks: int = 0) -> LookupView:
    return LookupView(done, failed, blocks, 0.0)


@pytest.mark.parametrize(
    ("lookup", "now_s", "announced", "verdict"),
    [
        (view(done=False), 0.1, 0, Verdict.WAIT),
        (view(done=False), 0.3, 0, Verdict.GIVE_UP),
        (view(failed=True), 0.1, 0, Verdict.GIVE_UP),
        (view(failed=True), 0.1, 9, Verdict.GIVE_UP),
        (view(blocks=0), 0.1, 0, Verdict.TAKE),
        (view(blocks=5), 9.0, 0, Verdict.TAKE),
        (view(blocks=3), 0.5, 4, Verdict.REPEAT),
        (view(blocks=4), 0.5, 4, Verdict.TAKE),
        (view(blocks=3), 1.5, 4, Verdict.TAKE),
    ],
)
def test_a_lookup_ends_in_an_answer_or_at_its_deadline(
    lookup: LookupView, now_s: float, announced: int, verdict: Verdict
) -> None:
    assert judge(lookup, now_s, 0.25, announced, 1.0) is verdict


def test_an_announcement_is_understood_by_the_other_side() -> None:
    params = announcement(HASHES, 7)
    assert params == {"infinistore": {"last_key": HASHES[6].hex(), "blocks": 7}}
    assert announced_blocks(params, HASHES, usable=10) == 7
    assert announced_blocks(params, HASHES[:6], usable=6) == 6  # it saved output, too
    assert announcement(HASHES, 0) is None


@pytest.mark.parametrize(
    "params",
    [
        None,
        7,
        {},
        {"infinistore": None},
        {"infinistore": {"blocks": "7", "last_key": HASHES[6].hex()}},
        {"infinistore": {"blocks": 7}},
        {"infinistore": {"blocks": -1, "last_key": ""}},
        {"infinistore": {"blocks": 7, "last_key": HASHES[5].hex()}},
        {"do_remote_prefill": True},
    ],
)
def test_what_a_client_makes_up_announces_nothing(params: object) -> None:
    assert announced_blocks(params, HASHES, usable=10) == 0
