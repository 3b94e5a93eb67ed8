"""Which server likely has a prompt's beginning in its cache."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from infinistore.router.prefixes import PIECE_CHARS, PIECES_MAX, Prefixes, prompt_pieces


def test_prompts_that_begin_alike_share_their_first_pieces():
    start = "s" * (3 * PIECE_CHARS)
    one = prompt_pieces({"prompt": start + "a" * PIECE_CHARS})
    other = prompt_pieces({"prompt": start + "b" * PIECE_CHARS})
    assert len(one) == len(other) == 4
    assert one[:3] == other[:3]
    assert one[3] != other[3]
    # A piece is all text up to its end, not the text in it.
    assert prompt_pieces({"prompt": "x" * PIECE_CHARS + start})[1] not in one


def test_a_conversations_next_turn_begins_with_the_last_ones_pieces():
    turn: list[dict[str, Any]] = [{"role": "system", "content": "s" * 5000}]
    first = prompt_pieces({"messages": turn})
    turn += [{"role": "user", "content": "u" * 2000}, {"content": "é", "role": "assistant"}]
    second = prompt_pieces({"messages": turn})
    assert len(first) >= 4
    assert second[: len(first)] == first
    assert len(second) > len(first)


def test_what_changes_the_cached_bytes_changes_every_piece():
    body = {"prompt": "s" * 4096, "model": "m"}
    pieces = prompt_pieces(body)
    assert prompt_pieces({**body, "temperature": 1, "max_tokens": 9}) == pieces
    for change in ({"model": "n"}, {"cache_salt": "x"}, {"tools": [{}]}):
        assert not set(prompt_pieces({**body, **change})) & set(pieces)


def test_prompts_of_any_kind_have_pieces_or_none():
    tokens = prompt_pieces({"prompt": list(range(1000))})
    assert len(tokens) == len(str(list(range(1000)))) // PIECE_CHARS
    assert prompt_pieces({"prompt": [list(range(1000)), [1]]}) == tokens
    assert prompt_pieces({"prompt": "short"}) == []
    for odd in ({}, {"prompt": None}, {"prompt": []}, {"messages": [3, None]}, {"prompt": [[]]}):
        assert prompt_pieces(odd) == []
    assert len(prompt_pieces({"prompt": "\ud800" * (PIECES_MAX + 9) * PIECE_CHARS})) == PIECES_MAX


@given(st.lists(st.tuples(st.integers(0, 3), st.text("ab", max_size=6)), max_size=30))
def test_shared_is_what_a_plain_search_finds(asked: list[tuple[int, str]]):
    def pieces(text: str) -> list[bytes]:
        return [text[: end + 1].encode() for end in range(len(text))]

    prefixes = Prefixes()
    for server, text in asked:
        prefixes.note(pieces(text), server)
    for query in ("abab", "bb", "a", ""):
        known = [
            {piece for at, text in asked if at == i for piece in pieces(text)} for i in range(4)
        ]
        plain = [
            next(
                (depth for depth, piece in enumerate(pieces(query)) if piece not in has), len(query)
            )
            for has in known
        ]
        assert prefixes.shared(pieces(query), 4) == plain


def test_it_remembers_a_bounded_number_and_forgets_ends_before_starts():
    prefixes = Prefixes(known_max=4)
    prefixes.note([b"1", b"2", b"3", b"4", b"5", b"6"], 0)
    assert len(prefixes) == 4
    assert prefixes.shared([b"1", b"2", b"3", b"4", b"5"], 1) == [4]
    prefixes.note([b"x"], 1)
    assert prefixes.shared([b"1", b"2", b"3", b"4"], 2) == [3, 0]


def test_a_server_that_died_has_nothing():
    prefixes = Prefixes()
    prefixes.note([b"1", b"2"], 0)
    prefixes.note([b"1"], 1)
    prefixes.forget(0)
    assert prefixes.shared([b"1", b"2"], 2) == [0, 1]
    assert len(prefixes) == 1
