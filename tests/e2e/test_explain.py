"""`infinistore explain` against a real server: each cause, with the true one."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from click.testing import CliRunner

import infinistore
from infinistore.cli import group
from infinistore.errors import AuthError, InfiniStoreError
from infinistore.keys import (
    HeadRange,
    Namespace,
    block_hashes,
    block_key,
    block_names,
    head_ranges,
    salt,
)
from pool_damage import damage_pool
from server_process import ServerProcess
from waiting import until

VALUE = 64 * 1024
TOKENS = list(range(1000, 1100))  # six blocks of 16 that are asked for
SPACE = Namespace(
    weights="abc", dtype="bfloat16", cache_dtype="auto", layout="flash", block_tokens=16,
    layers=2, kv_heads=4, head_size=64,
)  # fmt: skip
Connect = Callable[..., infinistore.Client]


@pytest.fixture
def space(request: pytest.FixtureRequest) -> Namespace:
    """The test's own: what one test purged is no other's story."""
    return dataclasses.replace(SPACE, tenant=request.node.name)


def run(server: ServerProcess, *words: str, token: str = "") -> tuple[int, dict[str, Any]]:
    """In this process: to start another takes most of a second."""
    words = ("explain", "--json", "--admin", server.admin_address, *words)
    done = CliRunner().invoke(group, words, env={"INFINISTORE_TOKEN": token or None})
    if isinstance(done.exception, InfiniStoreError):
        raise done.exception
    return done.exit_code, json.loads(done.output)


def of_prompt(
    server: ServerProcess, space: Namespace, *words: str
) -> tuple[int, list[dict[str, Any]]]:
    text = " ".join(map(str, TOKENS))
    status, told = run(server, "--tokens", text, "--namespace", str(space), *words)
    return status, told["blocks"]


def of_keys(server: ServerProcess, space: str, *keys: str) -> list[dict[str, Any]]:
    words = [word for key in keys for word in ("--key", key)]
    told = run(server, "--namespace", space, *words)[1]
    return [dict(each) for each in told["keys"]]


def write(client: infinistore.Client, keys: Sequence[str | bytes]) -> None:
    memory = memoryview(bytearray(VALUE))
    client.write_cache(memory, [(key, 0) for key in keys], VALUE, unit="bytes")
    client.sync()


def keys_of_prompt(space: Namespace, ranks: int = 1, extras: Sequence[bytes] = ()) -> list[bytes]:
    hashes = block_hashes(
        TOKENS, space.block_tokens, lambda block: list(extras) if block == 0 else []
    )
    heads = head_ranges(ranks, space.kv_heads)
    return [block_key(name, each) for name in block_names(hashes) for each in heads]


def test_a_prompt_that_is_there_is_six_hits(
    server: ServerProcess, connect: Connect, space: Namespace
) -> None:
    write(connect(namespace=str(space)), keys_of_prompt(space))
    status, blocks = of_prompt(server, space)
    assert status == 0
    assert [each["state"] for each in blocks] == ["present"] * 6


def test_a_block_that_nobody_stored_is_named(
    start_server: Callable[..., ServerProcess], connect: Connect, space: Namespace
) -> None:
    server = start_server()  # others have the prompt in namespaces of their own
    keys = keys_of_prompt(space)
    write(connect(server, namespace=str(space)), [*keys[:3], *keys[4:6]])
    status, told = run(server, "--tokens", json.dumps(TOKENS), "--namespace", str(space))
    assert status == 1
    assert told["hits"] == 3
    assert [each["state"] for each in told["blocks"]] == ["present"] * 3 + ["unknown"] + [
        "present"
    ] * 2


def test_an_evicted_key_says_when_and_for_whom(
    start_server: Callable[..., ServerProcess], connect: Connect
) -> None:
    # No watermark below the whole pool: only writers press.
    small = start_server("--pool=8MiB", "--evict-start=1", "--evict-stop=0.99")
    until(lambda: not small.admin("/health")["populating"])
    write(connect(small, namespace="victim"), ["old"])
    write(connect(small, namespace="greedy"), [f"k{i}" for i in range(160)])
    (told,) = of_keys(small, "victim", "old")
    assert (told["state"], told["reason"], told["pressing"]) == ("evicted", "room", "greedy")
    assert 0 <= told["ago_s"] < 60
    stats = small.stats()
    assert stats["misses_evicted"] == 0
    assert connect(small, namespace="victim").match_prefix(["old", "older"]) == 0
    assert small.stats()["misses_evicted"] == 2


def test_what_the_watermark_took_says_so(
    start_server: Callable[..., ServerProcess], connect: Connect, space: Namespace
) -> None:
    small = start_server(
        "--pool=8MiB", "--evict-start=0.5", "--evict-stop=0.1", "--housekeeping-interval=50ms"
    )
    write(connect(small, namespace="space"), [f"k{i}" for i in range(100)])
    until(lambda: small.stats()["evictions"] > 0)
    told = of_keys(small, "space", "k0")[0]
    assert (told["state"], told["reason"]) == ("evicted", "watermark")


def test_erased_purged_and_being_written(server: ServerProcess, connect: Connect) -> None:
    client = connect(namespace="gone")
    write(client, ["erased"])
    client.delete(["erased"])
    client.write_cache(
        memoryview(bytearray(VALUE)), [("half", 0)], VALUE, unit="bytes", value_bytes=2 * VALUE
    )
    client.sync()
    write(connect(namespace="purged"), ["key"])
    server.admin("/purge?namespace=purged", "POST")
    assert [each["state"] for each in of_keys(server, "gone", "erased", "half")] == [
        "erased",
        "written",
    ]
    assert of_keys(server, "purged", "key")[0]["state"] == "purged"


def test_a_corrupt_value_says_so(server: ServerProcess, connect: Connect) -> None:
    mark = b"a value that is damaged soon"
    value = memoryview(bytearray(mark.ljust(VALUE, b".")))
    client = connect(namespace="damaged")
    client.write_cache(value, [("key", 0)], VALUE, unit="bytes")
    client.sync()
    damage_pool(server.pid, mark)
    server.admin("/verify", "POST")
    assert of_keys(server, "damaged", "key")[0]["state"] == "corrupt"


def test_a_key_of_another_namespace_is_found_there(server: ServerProcess, connect: Connect) -> None:
    write(connect(namespace="theirs"), ["shared"])
    told = of_keys(server, "ours", "shared")[0]
    assert (told["state"], told["where"]) == ("elsewhere", "theirs")


@pytest.mark.parametrize(
    ("field", "value"),
    [("weights", "def"), ("dtype", "float16"), ("cache_dtype", "fp8"), ("layout", "triton"),
     ("tenant", "b"), ("block_tokens", 32)],
)  # fmt: skip
def test_the_part_that_differs_is_named(
    server: ServerProcess, connect: Connect, space: Namespace, field: str, value: Any
) -> None:
    other = dataclasses.replace(space, **{field: value})
    write(connect(namespace=str(other)), keys_of_prompt(other))
    status, blocks = of_prompt(server, space)
    assert status == 1
    assert {each["state"] for each in blocks} == {"elsewhere"}
    assert {(*each["differs"],) for each in blocks} == {(field,)}
    assert {each["where"] for each in blocks} == {str(other)}


def test_a_salt_that_the_writer_had_not_is_named(
    server: ServerProcess, connect: Connect, space: Namespace
) -> None:
    write(connect(namespace=str(space)), keys_of_prompt(space))
    blocks = of_prompt(server, space, "--salt", "tenant a")[1]
    assert {(*each["differs"],) for each in blocks} == {("salt",)}


def test_with_the_salt_its_blocks_are_there(
    server: ServerProcess, connect: Connect, space: Namespace
) -> None:
    write(connect(namespace=str(space)), keys_of_prompt(space, extras=[salt("tenant a")]))
    assert of_prompt(server, space, "--salt", "tenant a")[0] == 0
    assert of_prompt(server, space)[0] == 1


def test_ranks_are_found_and_other_ranks_named(
    server: ServerProcess, connect: Connect, space: Namespace
) -> None:
    write(connect(namespace=str(space)), keys_of_prompt(space, ranks=2))
    status, told = run(server, "--tokens", json.dumps(TOKENS))  # the namespace that was used last
    assert (status, told["tensor_parallel"], told["namespace"]) == (0, 2, str(space))
    blocks = of_prompt(server, space, "--tensor-parallel", "1")[1]
    assert {(*each["differs"],) for each in blocks} == {("tensor_parallel",)}


def test_one_rank_that_is_missing_is_a_missing_block(
    server: ServerProcess, connect: Connect, space: Namespace
) -> None:
    client = connect(namespace=str(space))
    write(client, keys_of_prompt(space, ranks=2))
    name = block_names(block_hashes(TOKENS, 16))[1]
    client.delete([block_key(name, HeadRange(2, 4, 4))])
    states = [each["state"] for each in of_prompt(server, space, "--tensor-parallel", "2")[1]]
    assert states == ["present", "erased"] + ["present"] * 4


def test_a_server_that_is_away_is_named(start_server: Callable[..., ServerProcess]) -> None:
    gone = start_server()
    assert gone.stop() == 0
    told = of_keys(gone, "default", "key")[0]
    assert (told["state"], told["server"]) == ("away", gone.admin_address)


def test_the_token_is_needed(start_server: Callable[..., ServerProcess]) -> None:
    guarded = start_server(environment={"INFINISTORE_TOKEN": "s3cret"})
    assert run(guarded, "--key", "k", token="s3cret")[1]["keys"][0]["state"] == "unknown"
    with pytest.raises(AuthError, match="INFINISTORE_TOKEN"):
        run(guarded, "--key", "k")
