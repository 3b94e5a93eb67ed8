"""Keys and namespaces: equal everywhere, different whenever the bytes would be."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infinistore.errors import UsageError
from infinistore.keys import (
    SCHEMA,
    BlockChain,
    HeadRange,
    Namespace,
    adapter,
    block_hash,
    block_hashes,
    block_key,
    block_names,
    differences,
    head_range,
    head_ranges,
    media,
    salt,
)

NAMESPACE = Namespace(
    weights="abc",
    dtype="float32",
    cache_dtype="auto",
    layout="cpu.vec.LBHNC",
    block_tokens=32,
    layers=4,
    kv_heads=2,
    head_size=64,
)


def test_the_hash_is_what_it_was() -> None:
    # Written down once: a change of these is a change of HASH_SCHEME.
    tokens = list(range(8))
    hashes = block_hashes(tokens, 4, lambda block: [salt("s")] if block == 0 else [])
    assert [h.hex()[:16] for h in hashes] == ["bf569a44c89aedf4", "2b79268a179d2d3a"]


def test_hashes_are_equal_in_another_process_whatever_its_hash_seed() -> None:
    code = (
        "from infinistore.keys import *; "
        "print(block_hashes(range(64), 16, lambda b: [media('x', b), salt('y')])[-1].hex())"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "77")
    }
    assert len(seen) == 1


@given(tokens=st.lists(st.integers(0, 2**32 - 1), min_size=8, max_size=40), at=st.integers(0, 7))
def test_a_changed_token_changes_its_block_and_all_after_it(tokens: list[int], at: int) -> None:
    changed = list(tokens)
    changed[at] = (changed[at] + 1) % 2**32
    before, after = block_hashes(tokens, 4), block_hashes(changed, 4)
    first = at // 4
    assert before[:first] == after[:first]
    assert all(a != b for a, b in zip(before[first:], after[first:], strict=True))


@given(tokens=st.lists(st.integers(0, 2**20), min_size=1, max_size=50), size=st.integers(1, 9))
def test_a_chain_that_grows_has_the_hashes_of_one_made_at_once(
    tokens: list[int], size: int
) -> None:
    chain = BlockChain(size)
    for blocks in range(len(tokens) // size + 1):
        chain.extend(tokens, blocks)
    assert chain.hashes == block_hashes(tokens, size)


def test_extras_of_different_kinds_or_cuts_never_meet() -> None:
    extras = [
        [],
        [salt("a")],
        [adapter("a")],
        [media("a", 0)],
        [media("a", 1)],
        [media("a", -1)],
        [salt("a"), salt("b")],
        [salt("ab")],
        [salt("a"), adapter("b")],
        [salt("b"), adapter("a")],
    ]
    hashes = {block_hash(None, [1, 2], of) for of in extras}
    assert len(hashes) == len(extras)


def test_the_order_in_which_extras_are_named_is_nothing() -> None:
    both = [salt("a"), media("b", 3)]
    assert block_hash(None, [1], both) == block_hash(None, [1], both[::-1])


def test_a_block_without_parent_is_not_one_with_an_empty_parent() -> None:
    assert block_hash(None, [1], []) != block_hash(b"", [1], [])


def test_a_token_that_is_no_token_is_refused() -> None:
    with pytest.raises(UsageError, match="token id"):
        block_hashes([1, -1], 2)


def test_a_block_that_is_not_full_is_refused() -> None:
    with pytest.raises(UsageError, match="3 of 4 tokens"):
        BlockChain(4).extend([1, 2, 3], 1)


@pytest.mark.parametrize(
    ("ranks", "heads", "expected"),
    [
        (1, 8, [(0, 8)]),
        (2, 8, [(0, 4), (4, 8)]),
        (8, 2, [(0, 1), (1, 2)]),
        (4, 1, [(0, 1)]),
    ],
)
def test_head_ranges_are_the_different_ones(
    ranks: int, heads: int, expected: list[tuple[int, int]]
) -> None:
    assert head_ranges(ranks, heads) == [HeadRange(a, b, heads) for a, b in expected]


def test_ranks_that_share_a_head_have_one_range() -> None:
    assert [head_range(rank, 4, 2).start for rank in range(4)] == [0, 0, 1, 1]


def test_heads_that_do_not_divide_are_refused() -> None:
    with pytest.raises(UsageError, match="6 KV heads over 4"):
        head_range(0, 4, 6)


def test_a_key_fits_and_names_its_part() -> None:
    (name,) = block_names([bytes(32)])
    key = block_key(name, HeadRange(0, 4, 8), group=1, stage=2, stages=4)
    assert key == b"{" + b"00" * 8 + b"}" + b"00" * 32 + b"/h0-4.8/g1/p2.4"
    assert len(key) <= 255


def test_a_chain_has_a_tag_for_each_64_blocks() -> None:
    hashes = block_hashes(range(150), 1)
    names = block_names(hashes)
    for index, name in enumerate(names):
        first = hashes[index // 64 * 64]
        assert name == b"{" + first.hex()[:16].encode() + b"}" + hashes[index].hex().encode()
    assert [block_names(hashes, a, b) for a, b in ((0, 1), (63, 65), (70, 150), (5, 5))] == [
        names[:1],
        names[63:65],
        names[70:],
        [],
    ]
    longer = block_hashes([*range(140), 7, 7, 7], 1)
    assert block_names(longer)[:140] == names[:140]


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(Namespace)])
def test_each_field_tells_namespaces_apart(field: str) -> None:
    value = getattr(NAMESPACE, field)
    other = value + 1 if isinstance(value, int) else value + "x"
    assert str(dataclasses.replace(NAMESPACE, **{field: other})) != str(NAMESPACE)


def test_a_tenant_cannot_name_another_s_namespace() -> None:
    forged = dataclasses.replace(NAMESPACE, tenant="default/v1")
    assert str(forged).split("/")[0] == "default%2Fv1"


@given(
    st.builds(
        Namespace,
        **{name: st.text(max_size=20) for name in ("weights", "dtype", "cache_dtype", "layout")},
        **{
            name: st.integers(1, 10**6)
            for name in ("block_tokens", "layers", "kv_heads", "head_size")
        },
        tenant=st.text(max_size=20),
    )
)
def test_a_namespace_is_read_from_its_text(space: Namespace) -> None:
    assert Namespace.parse(str(space)) == space


@pytest.mark.parametrize(
    "text",
    ["", "default", str(NAMESPACE) + "/more", str(NAMESPACE).replace(f"/v{SCHEMA}/", "/v0/"),
     str(NAMESPACE).replace("sha256-1", "md5"), str(NAMESPACE).replace("block32", "block032"),
     "te\nnant" + str(NAMESPACE)[7:]],
)  # fmt: skip
def test_a_text_that_is_no_namespace_of_ours_is_not_read(text: str) -> None:
    assert Namespace.parse(text) is None


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(Namespace)])
def test_the_part_that_differs_is_named(field: str) -> None:
    value = getattr(NAMESPACE, field)
    other = value + 1 if isinstance(value, int) else value + "/x"
    changed = dataclasses.replace(NAMESPACE, **{field: other})
    assert differences(str(NAMESPACE), str(changed)) == (field,)


def test_equal_namespaces_differ_in_nothing_and_strangers_in_their_name() -> None:
    assert differences(str(NAMESPACE), str(NAMESPACE)) == ()
    assert differences("default", "default") == ()
    assert differences(str(NAMESPACE), "default") == ("name",)


def test_an_epoch_of_the_weights_is_a_part_that_differs() -> None:
    one, other = f"{NAMESPACE}/epoch-7", str(dataclasses.replace(NAMESPACE, dtype="x"))
    assert differences(one, str(NAMESPACE)) == ("epoch",)
    assert differences(one, f"{NAMESPACE}/epoch-8") == ("epoch",)
    assert differences(one, other) == ("dtype", "epoch")
