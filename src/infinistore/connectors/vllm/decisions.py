"""The scheduler side's choices, as functions of plain values."""

from __future__ import annotations

import enum
from dataclasses import dataclass


def usable_blocks(num_tokens: int, block_tokens: int) -> int:
    """Whole blocks before the last token: the engine must compute at least that one."""
    return max(0, num_tokens - 1) // block_tokens


def external_tokens(hit_blocks: int, computed_tokens: int, block_tokens: int) -> int:
    """Tokens that the store has beyond those that the engine has itself."""
    return max(0, hit_blocks - computed_tokens // block_tokens) * block_tokens


def first_to_save(computed_tokens: int, block_tokens: int, in_store: int | None) -> int:
    """From which block on a request that is (again) let in may have something to save.

    `in_store` of its blocks are in the store by its last lookup (None: it said nothing). What the
    store lost although the engine still has it is offered again; so is what is computed again.
    """
    computed = computed_tokens // block_tokens
    return computed if in_store is None else min(in_store, computed)


def last_to_save(known_tokens: int, tokens_after_step: int, block_tokens: int) -> int:
    """Up to which block (exclusive) a request's blocks are full and their tokens known.

    A token still being sampled (asynchronous scheduling) or only guessed (speculation) is not.
    """
    return min(known_tokens, tokens_after_step) // block_tokens


def is_kept(block: int, block_tokens: int, computed_tokens: int, window: int | None) -> bool:
    """Whether the engine holds a block of a request when it computes the token after those.

    It has given back what no further token sees; those that it never had count as given back.
    """
    return window is None or (block + 1) * block_tokens > computed_tokens - window + 1


class Verdict(enum.Enum):
    """What to make of a lookup."""

    WAIT = enum.auto()  # ask this lookup again in the next step
    REPEAT = enum.auto()  # start another: announced blocks are not there yet
    TAKE = enum.auto()
    GIVE_UP = enum.auto()  # compute


@dataclass(frozen=True, slots=True)
class LookupView:
    """A lookup at one moment."""

    is_done: bool
    is_failed: bool
    blocks: int
    asked_at_s: float


def judge(
    lookup: LookupView, now_s: float, deadline_s: float, announced: int, delivery_deadline_s: float
) -> Verdict:
    """Whether a request waits for the store, takes what it has, or computes.

    `announced` blocks are said to have been saved; until their deadline fewer are not taken.
    """
    if not lookup.is_done:
        return Verdict.WAIT if now_s < deadline_s else Verdict.GIVE_UP
    if lookup.is_failed:
        return Verdict.GIVE_UP
    if lookup.blocks < announced and now_s < delivery_deadline_s:
        return Verdict.REPEAT
    return Verdict.TAKE


def announced_blocks(params: object, hashes: list[bytes], usable: int) -> int:
    """How many of a request's usable blocks a prefill instance says that it has saved.

    `params` came with the request over HTTP: anything but what `announcement` makes counts as
    nothing, and so does a chain that is not this request's.
    """
    ours = params.get("infinistore") if isinstance(params, dict) else None
    if not isinstance(ours, dict):
        return 0
    blocks, last = ours.get("blocks"), ours.get("last_key")
    if not isinstance(blocks, int) or not isinstance(last, str) or blocks < 1:
        return 0
    if blocks <= len(hashes) and hashes[blocks - 1].hex() != last:
        return 0
    return min(blocks, usable)


def announcement(hashes: list[bytes], blocks: int) -> dict[str, object] | None:
    """What a prefill instance's answer says of what it saved; see `announced_blocks`."""
    if blocks < 1:
        return None
    return {"infinistore": {"last_key": hashes[blocks - 1].hex(), "blocks": blocks}}
