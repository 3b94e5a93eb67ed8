"""A prompt as the store sees it: which keys its blocks have, and under which others they might be.

Pure functions of plain values; `explain` asks the server about them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from infinistore.errors import UsageError
from infinistore.keys import (
    EPOCH,
    Namespace,
    adapter,
    block_hashes,
    block_key,
    block_names,
    differences,
    head_ranges,
    salt,
)

# Tensor-parallel ranks that engines run with, the most frequent first.
RANKS = (1, 2, 4, 8, 16)


@dataclass(frozen=True, slots=True)
class Shape:
    """How an engine cuts and names the blocks of a prompt."""

    namespace: str
    block_tokens: int
    kv_heads: int
    ranks: int = 1
    stages: int = 1
    salt: str = ""
    adapter: str = ""

    @classmethod
    def of(cls, namespace: str, **rest: int | str) -> Shape | None:
        """Reads what a connector's namespace says; None if it is not a connector's."""
        space = Namespace.parse(namespace.partition(EPOCH)[0])
        if space is None or space.block_tokens < 1 or space.kv_heads < 1:
            return None
        return cls(namespace, space.block_tokens, space.kv_heads, **rest)  # type: ignore[arg-type]

    def keys(self, tokens: Sequence[int], first: int, end: int) -> list[list[bytes]]:
        """The keys of blocks [first, end): one for each head range of each pipeline stage."""
        hashes = block_hashes(tokens[: end * self.block_tokens], self.block_tokens, self._extras)
        heads = head_ranges(self.ranks, self.kv_heads)
        return [
            [
                block_key(name, each, stage=stage, stages=self.stages)
                for stage in range(self.stages)
                for each in heads
            ]
            for name in block_names(hashes, first, end)
        ]

    def _extras(self, block: int) -> list[bytes]:
        """As the connector has them: the salt is the first block's, the adapter every block's."""
        salts = [salt(self.salt)] if self.salt and block == 0 else []
        return salts + ([adapter(self.adapter)] if self.adapter else [])

    def is_possible(self) -> bool:
        """Whether the heads can be spread over so many ranks."""
        return self.kv_heads % self.ranks == 0 or self.ranks % self.kv_heads == 0


@dataclass(frozen=True, slots=True)
class Variant:
    """Another name under which a block of the same tokens might be stored."""

    shape: Shape
    differs: tuple[str, ...]
    block: int  # in the variant's own blocks


def with_ranks(shape: Shape) -> list[Shape]:
    """`shape` with each number of ranks that gives its blocks other keys."""
    found: dict[tuple[object, ...], Shape] = {}
    for ranks in dict.fromkeys((shape.ranks, *RANKS)):
        other = replace(shape, ranks=ranks)
        if other.is_possible():
            found.setdefault(tuple(head_ranges(ranks, shape.kv_heads)), other)
    return list(found.values())


def variants(
    shape: Shape, others: Iterable[str], first_token: int, tokens: int
) -> Iterator[Variant]:
    """What the block at `first_token` would be called where only some parts differ.

    `others` are the namespaces that there are; `tokens` is the length of the prompt.
    """
    for namespace in dict.fromkeys((shape.namespace, *others)):
        space = Shape.of(
            namespace,
            ranks=shape.ranks,
            stages=shape.stages,
            salt=shape.salt,
            adapter=shape.adapter,
        )
        if space is None:
            continue
        block = first_token // space.block_tokens
        if (block + 1) * space.block_tokens > tokens:
            continue
        parts = differences(shape.namespace, namespace)
        for other in with_ranks(space):
            # Ranks that give the same keys are no difference.
            is_same = head_ranges(other.ranks, other.kv_heads) == head_ranges(
                shape.ranks, shape.kv_heads
            )
            ranks = () if is_same or space.kv_heads != shape.kv_heads else ("tensor_parallel",)
            for bare in _without_extras(other):
                extras = tuple(
                    name for name in ("salt", "adapter")
                    if getattr(bare, name) != getattr(shape, name)
                )  # fmt: skip
                if differs := (*parts, *ranks, *extras):
                    yield Variant(bare, differs, block)


def _without_extras(shape: Shape) -> Iterable[Shape]:
    """As it is; without its salt; without its adapter; without both."""
    salts, adapters = dict.fromkeys((shape.salt, "")), dict.fromkeys((shape.adapter, ""))
    return [replace(shape, salt=salt, adapter=name) for name in adapters for salt in salts]


def parse_tokens(text: str) -> list[int]:
    """Token ids as JSON or as numbers with blanks or commas between. Raises `UsageError`."""
    words = text.replace("[", " ").replace("]", " ").replace(",", " ").split()
    wrong = next((word for word in words if not word.isdecimal() or int(word) >= 2**32), None)
    if wrong is not None:
        raise UsageError(f"{wrong!r:.40} is no token id; give numbers below 2**32, like [1, 42, 7]")
    if not words:
        raise UsageError("no token ids; give numbers, like [1, 42, 7]")
    return [int(word) for word in words]


def usable_blocks(tokens: int, block_tokens: int) -> int:
    """Whole blocks before the last token: an engine computes at least that one itself."""
    return max(0, tokens - 1) // block_tokens
