"""What was seen for each prompt, and whether it is what must be: pure."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from demo.client import Hits, Reply
    from demo.prompts import Prompt


def whole_block_tokens(prompt_tokens: int, block_tokens: int) -> int:
    """The tokens of the whole blocks before the last token: all that can ever be loaded."""
    return (prompt_tokens - 1) // block_tokens * block_tokens


@dataclasses.dataclass(frozen=True, slots=True)
class Pass:
    """One prompt asked once: the reply, what the asked decode found, and the bytes moved."""

    reply: Reply
    hits: Hits
    read_bytes: int
    written_bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One prompt over one transport: plain, through prefill and decode, and a second time."""

    transport: str
    prompt: Prompt
    plain: Reply
    split: Pass
    second: Pass

    @property
    def is_identical(self) -> bool:
        """Whether both passes gave plain vLLM's tokens."""
        return (
            self.split.reply.token_ids == self.plain.token_ids
            and self.second.reply.token_ids == self.plain.token_ids
        )


def faults(row: Row, block_tokens: int, value_bytes: int) -> list[str]:
    """What is wrong with a row, one sentence each."""
    expected = whole_block_tokens(row.plain.prompt_tokens, block_tokens)
    found: list[str] = []
    for name, seen in (("P/D", row.split), ("second time", row.second)):
        if seen.reply.prompt_tokens != row.plain.prompt_tokens:
            found.append(
                f"{name}: {seen.reply.prompt_tokens} prompt tokens, "
                f"{row.plain.prompt_tokens} with plain vLLM"
            )
        if seen.reply.token_ids != row.plain.token_ids:
            found.append(
                f"{name}: tokens {list(seen.reply.token_ids)} "
                f"are not plain vLLM's {list(row.plain.token_ids)}"
            )
        hits = seen.hits
        if hits.local + hits.external != expected:
            found.append(
                f"{name}: {hits.local} local + {hits.external} external hits "
                f"are not the {expected} tokens of its whole blocks"
            )
        # Tokens that vLLM counts as loaded and that no byte was read for would be a lie.
        at_least = hits.external // block_tokens * value_bytes
        if seen.read_bytes < at_least:
            found.append(f"{name}: {seen.read_bytes} bytes read of the {at_least} hit")
    return found


def all_faults(rows: Sequence[Row], block_tokens: int, value_bytes: int) -> list[str]:
    """The faults of all rows, with whose they are; and those that only show in the whole."""
    found = [
        f"{row.transport}, {row.prompt.name}, {fault}"
        for row in rows
        for fault in faults(row, block_tokens, value_bytes)
    ]
    for transport in sorted({row.transport for row in rows}):
        mine = [row for row in rows if row.transport == transport]
        for name, passes in (
            ("P/D", [row.split for row in mine]),
            ("second", [row.second for row in mine]),
        ):
            if not any(seen.hits.external for seen in passes):
                found.append(f"{transport}: nothing was loaded from the store in pass {name!r}")
    return found
