"""Prefixes: which server was asked for what prompts begin with, so whose cache is warm. Pure.

The router has no tokenizer: a prompt's text is cut in pieces, and a piece is known by the hash of
all text up to its end. Prompts that begin alike share their first pieces, as their blocks do in a
cache.
"""

from __future__ import annotations

import collections
import hashlib
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from infinistore.router.bodies import JsonObject

PIECE_CHARS = 1024
PIECES_MAX = 1024  # of one prompt: what follows a megabyte decides nothing
KNOWN_MAX = 1 << 17  # pieces of all prompts

# What changes the cached bytes of the same text.
_ROOT_FIELDS = ("model", "cache_salt", "tools", "chat_template", "chat_template_kwargs")


def prompt_pieces(body: JsonObject) -> list[bytes]:
    """The hashes of the whole pieces of a request's prompt; of several prompts, the first's."""
    text = _prompt_text(body)[: PIECES_MAX * PIECE_CHARS]
    root = json.dumps([body.get(name) for name in _ROOT_FIELDS], sort_keys=True)
    state = hashlib.blake2b(root.encode(), digest_size=16)
    pieces = []
    for end in range(PIECE_CHARS, len(text) + 1, PIECE_CHARS):
        state.update(text[end - PIECE_CHARS : end].encode("utf-8", "surrogatepass"))
        pieces.append(state.digest())
    return pieces


def _prompt_text(body: JsonObject) -> str:
    messages = body.get("messages")
    if isinstance(messages, list):  # one after the other: a conversation's next turn begins alike
        return "".join(json.dumps(message, sort_keys=True) for message in messages)
    prompt = body.get("prompt")
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], (str, list)):
        prompt = prompt[0]
    return prompt if isinstance(prompt, str) else json.dumps(prompt)


class Prefixes:
    """What each of some servers was asked for, as far as it is remembered."""

    def __init__(self, known_max: int = KNOWN_MAX) -> None:
        """Knows nothing yet, and never more than `known_max` pieces."""
        self._known_max = known_max
        # A bit for each server that was asked for the piece; longest unused first.
        self._servers: collections.OrderedDict[bytes, int] = collections.OrderedDict()

    def shared(self, pieces: Sequence[bytes], servers: int) -> list[int]:
        """For each server how many of the first pieces it was asked for before."""
        counts = [0] * servers
        left = (1 << servers) - 1
        for depth, piece in enumerate(pieces):
            holders = self._servers.get(piece, 0) & left
            _set_all(counts, left & ~holders, depth)
            left = holders
            if not left:
                return counts
        _set_all(counts, left, len(pieces))
        return counts

    def note(self, pieces: Sequence[bytes], server: int) -> None:
        """The server is asked for a prompt of these pieces."""
        # Its start last, so that it is forgotten last: without it the rest is of no use.
        for piece in reversed(pieces):
            self._servers[piece] = self._servers.pop(piece, 0) | 1 << server
        while len(self._servers) > self._known_max:
            self._servers.popitem(last=False)

    def forget(self, server: int) -> None:
        """The server has lost its cache."""
        kept = ((piece, held & ~(1 << server)) for piece, held in self._servers.items())
        self._servers = collections.OrderedDict((piece, held) for piece, held in kept if held)

    def __len__(self) -> int:
        return len(self._servers)


def _set_all(counts: list[int], servers: int, count: int) -> None:
    while servers:
        server = servers.bit_length() - 1
        counts[server] = count
        servers ^= 1 << server
