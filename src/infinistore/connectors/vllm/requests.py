"""What the scheduler side knows of one request: its blocks' hashes, and what became of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from infinistore.connectors.vllm.lookups import Lookup
from infinistore.connectors.vllm.weights import AdapterDigests
from infinistore.keys import BlockChain, adapter, block_names, media, salt

# (request, first token, end token) -> the extra keys that vLLM itself would hash, if it says them.
ExtraKeys = Callable[[Any, int, int], Iterable[object] | None]
_TAGS = ("lora", "mm", "cache_salt")  # "prompt_embeds" is not a type that we know


class RequestPlan:
    """One request on the scheduler side; lives from its arrival to its end."""

    def __init__(self, request: Any, block_tokens: int, extras: BlockExtras | None) -> None:
        self.request = request
        self.extras = extras  # None: this request is not cached
        self.chain = BlockChain(block_tokens, extras.of_block if extras and extras.any else None)
        self.block_ids: list[list[int]] = []  # of each group
        self.saved = 0  # blocks before this one were offered to the store, or are in it
        self.in_store: int | None = None  # what the last lookup found
        self.lookup: Lookup | None = None
        self.asked_computed = 0  # computed tokens at the last question
        self.loading_leases: list[int] = []  # of an asynchronous load on its way
        self.has_failed = False  # a load failed: no other is tried, or it might go on for ever

    def note_failure(self) -> None:
        """A load of it failed: its blocks are computed."""
        self.has_failed = True
        self.in_store = None

    def hashes(self, blocks: int) -> list[bytes]:
        """The chain, at least `blocks` long."""
        self.chain.extend(self.request.all_token_ids, blocks)
        return self.chain.hashes

    def names(self, first: int, end: int) -> list[bytes]:
        """What the keys of these blocks begin with."""
        return block_names(self.hashes(end), first, end)


class BlockExtras:
    """The canonical extra keys of a request's blocks."""

    def __init__(
        self, salt_text: str | None, adapter_digest: str | None, items: Sequence[Any], size: int
    ) -> None:
        self._salt = [salt(salt_text)] if salt_text else []
        self._adapter = [adapter(adapter_digest)] if adapter_digest else []
        self._items = [
            (_identifier(item), item.mm_position.offset, item.mm_position.length) for item in items
        ]
        self._block_tokens = size
        self.any = bool(self._salt or self._adapter or self._items)

    def of_block(self, index: int) -> list[bytes]:
        """The extras of one block."""
        start = index * self._block_tokens
        end = start + self._block_tokens
        items = [
            media(name, offset - start)
            for name, offset, length in self._items
            if offset < end and offset + length > start
        ]
        return [*(self._salt if index == 0 else ()), *self._adapter, *items]


def _identifier(item: Any) -> str:
    return str(getattr(item, "identifier", None) or item.mm_hash)


class Unkeyed(Exception):
    """A request without a key that we know; the message says why."""


def read_extras(
    request: Any, block_tokens: int, adapters: AdapterDigests, extra_keys: ExtraKeys
) -> BlockExtras:
    """The extras of a request. Raises `Unkeyed` if something about it has no canonical form."""
    if getattr(request, "prompt_embeds", None) is not None:
        raise Unkeyed("its prompt is embeddings")
    if getattr(request, "resumable", False):
        raise Unkeyed("its tokens may still change")
    items = list(getattr(request, "mm_features", None) or ())
    lora = getattr(request, "lora_request", None)
    digest = None
    if lora is not None:
        digest = adapters.find(lora.lora_name, lora.lora_int_id, lora.lora_path)
        if digest is None:
            raise Unkeyed(f"adapter {lora.lora_name} has no digest (yet)")
    keys = extra_keys(request, 0, max(request.num_tokens, 1))
    unknown = [key for key in keys or () if not _is_known(key, request, items)]
    if unknown:
        raise Unkeyed(f"vLLM hashes extra keys that are new to us: {unknown[:3]!r}")
    return BlockExtras(getattr(request, "cache_salt", None), digest, items, block_tokens)


def _is_known(key: object, request: Any, items: Sequence[Any]) -> bool:
    if isinstance(key, tuple) and key and key[0] in _TAGS:
        return True
    # Older versions give the bare values.
    lora = getattr(request, "lora_request", None)
    known = {_identifier(item) for item in items}
    known.add(getattr(request, "cache_salt", None) or "")
    if lora is not None:
        known.add(lora.lora_name)
    first = key[0] if isinstance(key, tuple) and key else key
    return isinstance(first, str) and first in known
