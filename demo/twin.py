"""The twin: one stored block with wrong but validly sealed bytes must change the output.

Without it equal tokens could mean that nothing that was loaded was ever looked at.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import numpy as np

import infinistore
from demo import client
from demo.engines import BLOCK_TOKENS
from infinistore.keys import HeadRange, block_hashes, block_key, block_names

if TYPE_CHECKING:
    from pathlib import Path

    from demo.client import Reply
    from demo.engines import Service, Store
    from demo.prompts import Prompt


@dataclasses.dataclass(frozen=True, slots=True)
class Twin:
    """A prompt asked again after one of its blocks was changed in the store."""

    prompt: Prompt
    transport: str
    plain: Reply
    reply: Reply
    external_hits: int

    def faults(self) -> list[str]:
        """What shows that equal tokens prove nothing here."""
        found = []
        if self.reply.token_ids == self.plain.token_ids:
            found.append("the tokens did not change with a loaded block's bytes")
        if self.external_hits == 0:
            found.append("nothing was loaded")
        return [f"{self.transport}, twin of {self.prompt.name}: {fault}" for fault in found]


def flip_last_block(
    store: Store, space: str, model: Path, token_ids: tuple[int, ...], value_bytes: int
) -> None:
    """Negates every number of a prompt's last whole block, through the public API.

    The new value is sealed with its own, right checksum: only the tokens can tell.
    """
    blocks = (len(token_ids) - 1) // BLOCK_TOKENS
    config = json.loads((model / "config.json").read_text())
    heads = config["num_key_value_heads"]
    last = block_names(block_hashes(token_ids, BLOCK_TOKENS))[blocks - 1]
    key = block_key(last, HeadRange(0, heads, heads))
    value = np.empty(value_bytes // 4, dtype=np.float32)
    connection = infinistore.connect(store.url, namespace=space)
    try:
        connection.read_cache(value, [(key, 0)], value.size)
        connection.sync()
        connection.write_cache(-value, [(key, 0)], value.size, on_exists="replace")
        connection.sync()
    finally:
        connection.close()


def ask_twin(
    store: Store,
    decode: Service,
    space: str,
    model: Path,
    prompt: Prompt,
    transport: str,
    plain: Reply,
    value_bytes: int,
) -> Twin:
    """Changes a block of `prompt` in the store, and asks a decode that has forgotten it."""
    flip_last_block(store, space, model, plain.prompt_token_ids, value_bytes)
    client.reset_prefix_cache(decode.url)
    reply, hits = client.ask_and_count(decode.url, decode.url, prompt, len(plain.token_ids))
    return Twin(prompt, transport, plain, reply, hits.external)
