"""Names of blocks: hashes chained over token ids, and the namespaces in which they mean anything.

A key says which tokens a block holds and which part of the model's heads and layers; a namespace
says whose bytes they are (weights, types, layout). Both are plain functions of plain values: equal
in every process, with or without an engine.

    hashes = block_hashes(token_ids, block_tokens=32, extras=lambda block: [salt("tenant a")])
    keys = [block_key(name, HeadRange(0, 8, 8)) for name in block_names(hashes)]
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from urllib.parse import quote, unquote

from infinistore.errors import UsageError

SCHEMA = 2  # changes with the form of a key
GROUP_BLOCKS = 64  # blocks of a chain that live on one node of a cluster
_TOKEN_BYTES = 4
HASH_SCHEME = "sha256-1"  # changes with anything that `block_hash` does
_ROOT = hashlib.sha256(b"infinistore block chain, scheme " + HASH_SCHEME.encode()).digest()

Extras = Callable[[int], Sequence[bytes]]


def _extra(kind: bytes, content: bytes) -> bytes:
    # Both lengths are in it, so that no two different extras have equal bytes.
    return struct.pack("<HI", len(kind), len(content)) + kind + content


def salt(text: str) -> bytes:
    """The extra of a request whose cache is kept apart by a salt; of its first block."""
    return _extra(b"salt", text.encode())


def adapter(digest: str) -> bytes:
    """The extra of a request under a LoRA adapter; `digest` is of the adapter's files."""
    return _extra(b"adapter", digest.encode())


def media(identifier: str, offset: int) -> bytes:
    """The extra of a block that holds part of an image or the like.

    `offset` is the item's first token counted from the block's, negative if it began before.
    """
    return _extra(b"media", struct.pack("<q", offset) + identifier.encode())


def block_hash(parent: bytes | None, token_ids: Sequence[int], extras: Sequence[bytes]) -> bytes:
    """SHA-256 of a block's tokens and extras and of all blocks before it (`parent`: their hash)."""
    count = struct.pack("<I", len(token_ids))
    begin = (_ROOT if parent is None else parent) + count + _token_bytes(token_ids)
    return hashlib.sha256(begin + b"".join(sorted(extras))).digest()


def _token_bytes(token_ids: Sequence[int]) -> bytes:
    try:
        return struct.pack(f"<{len(token_ids)}I", *token_ids)
    except struct.error:
        raise UsageError("a token id is not within 0 and 2**32 - 1: the block has no key") from None


def block_hashes(
    token_ids: Sequence[int], block_tokens: int, extras: Extras | None = None
) -> list[bytes]:
    """The chained hashes of the whole blocks of `token_ids`; `extras` gives those of a block."""
    chain = BlockChain(block_tokens, extras)
    chain.extend(token_ids, len(token_ids) // block_tokens)
    return chain.hashes


class BlockChain:
    """The hashes of one growing token sequence; each block is hashed once."""

    def __init__(self, block_tokens: int, extras: Extras | None = None) -> None:
        if block_tokens < 1:
            raise UsageError(f"a block of {block_tokens} tokens; it must hold at least one")
        self.block_tokens = block_tokens
        self.hashes: list[bytes] = []
        self._extras = extras

    def extend(self, token_ids: Sequence[int], blocks: int) -> None:
        """Makes the chain at least `blocks` long; `token_ids` is the sequence from its start."""
        first = len(self.hashes)
        if blocks <= first:
            return
        start, end = first * self.block_tokens, blocks * self.block_tokens
        if len(token_ids) < end:
            short = len(token_ids) // self.block_tokens
            there = len(token_ids) - short * self.block_tokens
            raise UsageError(f"block {short} has {there} of {self.block_tokens} tokens")
        # All at once: on the way of every request, and for a long prompt the half of it.
        tokens = _token_bytes(token_ids[start:end])
        size = self.block_tokens * _TOKEN_BYTES
        parent = self.hashes[-1] if self.hashes else _ROOT
        count = struct.pack("<I", self.block_tokens)
        extras_of = self._extras
        for at in range(0, len(tokens), size):
            content = parent + count + tokens[at : at + size]
            if extras_of is not None and (extras := extras_of(first + at // size)):
                content += b"".join(sorted(extras))
            parent = hashlib.sha256(content).digest()
            self.hashes.append(parent)


@dataclass(frozen=True, slots=True)
class HeadRange:
    """KV heads [start, end) of a model's `total`; under MLA the one latent head."""

    start: int
    end: int
    total: int


def head_range(rank: int, ranks: int, heads: int) -> HeadRange:
    """The heads that a tensor-parallel rank holds; ranks beyond the heads hold copies."""
    if heads % ranks == 0:
        each = heads // ranks
        return HeadRange(rank * each, (rank + 1) * each, heads)
    if ranks % heads == 0:
        head = rank // (ranks // heads)
        return HeadRange(head, head + 1, heads)
    raise UsageError(
        f"{heads} KV heads over {ranks} tensor-parallel ranks: one must be a multiple of the other"
    )


def head_ranges(ranks: int, heads: int) -> list[HeadRange]:
    """The different head ranges over all ranks, in order: what one block needs to be complete."""
    return list(dict.fromkeys(head_range(rank, ranks, heads) for rank in range(ranks)))


def block_names(hashes: Sequence[bytes], first: int = 0, end: int | None = None) -> list[bytes]:
    """What the keys of a chain's blocks begin with; `hashes` are the chain's from its start.

    A name is its group's tag, in braces, and the block's hash. A group is so many blocks one after
    the other, tagged by the hash of its first: a prefix is the work of few nodes of a cluster, and
    prompts that begin alike have the same names for what they share.
    """
    tag = b""
    names = []
    for index in range(first, len(hashes) if end is None else end):
        begin = index - index % GROUP_BLOCKS
        if begin == index or not tag:
            tag = b"{%b}" % hashes[begin][:8].hex().encode()
        names.append(tag + hashes[index].hex().encode())
    return names


def block_key(
    name: bytes, heads: HeadRange, *, group: int = 0, stage: int = 0, stages: int = 1
) -> bytes:
    """The key of one value: a block's KV of a head range, a layer group and a pipeline stage."""
    return name + key_part(heads, group=group, stage=stage, stages=stages)


def key_part(heads: HeadRange, *, group: int = 0, stage: int = 0, stages: int = 1) -> bytes:
    """What follows a block's name in its keys: for those who make many."""
    return f"/h{heads.start}-{heads.end}.{heads.total}/g{group}/p{stage}.{stages}".encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Namespace:
    """Everything, besides tokens and position, that the bytes of a block depend on.

    Its text is what a client says in its hello; two engines share blocks if their texts are equal.
    """

    weights: str  # digest of config and weights, or an id that the user vouches for
    dtype: str
    cache_dtype: str
    layout: str  # attention backend, instruction set and order in memory
    block_tokens: int
    layers: int
    kv_heads: int
    head_size: int
    tenant: str = "default"

    def __str__(self) -> str:
        parts = (
            self.tenant,
            f"v{SCHEMA}",
            f"weights-{self.weights}",
            self.dtype,
            f"cache-{self.cache_dtype}",
            self.layout,
            f"block{self.block_tokens}",
            f"layers{self.layers}",
            f"heads{self.kv_heads}x{self.head_size}",
            HASH_SCHEME,
        )
        return "/".join(quote(part, safe="") for part in parts)

    @classmethod
    def parse(cls, text: str) -> Namespace | None:
        """What `str()` made a text of; None if no namespace of this schema has that text."""
        match = _TEXT.fullmatch(text)
        if match is None:
            return None
        part = {name: unquote(value) for name, value in match.groupdict().items()}
        space = cls(
            weights=part["weights"],
            dtype=part["dtype"],
            cache_dtype=part["cache_dtype"],
            layout=part["layout"],
            block_tokens=int(part["block_tokens"]),
            layers=int(part["layers"]),
            kv_heads=int(part["kv_heads"]),
            head_size=int(part["head_size"]),
            tenant=part["tenant"],
        )
        return space if str(space) == text else None


# Behind it stands the epoch of weights that changed in a running engine.
EPOCH = "/epoch-"
_TEXT = re.compile(
    rf"(?P<tenant>[^/]*)/v{SCHEMA}/weights-(?P<weights>[^/]*)/(?P<dtype>[^/]*)"
    r"/cache-(?P<cache_dtype>[^/]*)/(?P<layout>[^/]*)/block(?P<block_tokens>\d{1,9})"
    r"/layers(?P<layers>\d{1,9})/heads(?P<kv_heads>\d{1,9})x(?P<head_size>\d{1,9})"
    rf"/{HASH_SCHEME}"
)


def differences(one: str, other: str) -> tuple[str, ...]:
    """The parts in which two namespaces' texts differ; ("name",) if one is not of `Namespace`."""
    if one == other:
        return ()
    (one, _, our_epoch), (other, _, their_epoch) = one.partition(EPOCH), other.partition(EPOCH)
    ours, theirs = Namespace.parse(one), Namespace.parse(other)
    if ours is None or theirs is None:
        return ("name",)
    names = [field.name for field in fields(Namespace)]
    parts = [name for name in names if getattr(ours, name) != getattr(theirs, name)]
    return (*parts, "epoch") if our_epoch != their_epoch else tuple(parts)
