"""Explaining a prompt: its names and the names it might have, answers put into words."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from click.testing import CliRunner

from infinistore.cli import explain
from infinistore.cli._admin import Admin
from infinistore.cli._prompt import Shape, parse_tokens, usable_blocks, variants, with_ranks
from infinistore.cli._stories import Servers, Story, hit_blocks, read_story, runs, story_of_block
from infinistore.errors import ConnectError, UsageError
from infinistore.keys import HeadRange, Namespace, block_hashes, block_key, block_names, salt

SPACE = Namespace(
    weights="abc", dtype="bfloat16", cache_dtype="auto", layout="flash", block_tokens=16,
    layers=2, kv_heads=4, head_size=64,
)  # fmt: skip
TOKENS = list(range(100))


def shape(**rest: Any) -> Shape:
    found = Shape.of(str(SPACE), **rest)
    assert found is not None
    return found


def test_blocks_have_the_connector_s_keys() -> None:
    hashes = block_hashes(TOKENS, 16)
    assert shape().keys(TOKENS, 1, 3) == [
        [block_key(name, HeadRange(0, 4, 4))] for name in block_names(hashes, 1, 3)
    ]
    two = shape(ranks=2, stages=2).keys(TOKENS, 0, 1)[0]
    assert two == [
        block_key(block_names(hashes)[0], HeadRange(start, start + 2, 4), stage=stage, stages=2)
        for stage in range(2)
        for start in (0, 2)
    ]
    salted = block_hashes(TOKENS, 16, lambda block: [salt("x")] if block == 0 else [])
    assert shape(salt="x").keys(TOKENS, 2, 3) == [
        [block_key(block_names(salted)[2], HeadRange(0, 4, 4))]
    ]


def test_the_last_token_s_block_is_not_asked_for() -> None:
    assert [usable_blocks(tokens, 16) for tokens in (0, 16, 17, 32, 33)] == [0, 0, 1, 1, 2]


def test_ranks_that_share_heads_are_one() -> None:
    assert [each.ranks for each in with_ranks(shape())] == [1, 2, 4]


def differing(**parts: Any) -> set[tuple[str, ...]]:
    other = str(dataclasses.replace(SPACE, **parts))
    return {each.differs for each in variants(shape(), [other], 32, len(TOKENS))}


@pytest.mark.parametrize(
    ("field", "value"),
    [("weights", "def"), ("dtype", "float16"), ("cache_dtype", "fp8"), ("layout", "triton"),
     ("tenant", "b"), ("block_tokens", 32)],
)  # fmt: skip
def test_a_variant_says_what_differs(field: str, value: Any) -> None:
    assert (field,) in differing(**{field: value})


def test_a_block_of_another_size_is_the_one_at_the_same_token() -> None:
    other = str(dataclasses.replace(SPACE, block_tokens=8))
    found = next(
        each for each in variants(shape(), [other], 32, 100) if "block_tokens" in each.differs
    )
    assert (found.block, found.shape.block_tokens) == (4, 8)
    # None that is longer than the prompt.
    long = str(dataclasses.replace(SPACE, block_tokens=128))
    assert all("block_tokens" not in each.differs for each in variants(shape(), [long], 32, 100))


def test_a_salt_an_adapter_and_ranks_are_tried_without() -> None:
    salted = shape(salt="s", adapter="a", ranks=2)
    found = {each.differs for each in variants(salted, [], 0, 100)}
    assert {("salt",), ("adapter",), ("salt", "adapter"), ("tensor_parallel",)} <= found
    assert () not in found


def test_a_namespace_of_an_epoch_is_a_connector_s() -> None:
    later = Shape.of(f"{SPACE}/epoch-7")
    assert later is not None
    assert later.block_tokens == 16
    found = variants(later, [str(SPACE)], 0, 100)
    assert ("epoch",) in {each.differs for each in found}


def test_strange_namespaces_are_no_variants() -> None:
    found = variants(shape(), ["", "default", "x/y"], 0, 100)
    assert {each.differs for each in found} == {("tensor_parallel",)}


@pytest.mark.parametrize("text", ["1 2 3", "[1, 2, 3]", "1,2,\n3\n"])
def test_tokens_are_read_as_json_or_plain(text: str) -> None:
    assert parse_tokens(text) == [1, 2, 3]


@pytest.mark.parametrize("text", ["", "[]", "1 x", "-1", "4294967296", "1.5"])
def test_what_is_no_token_is_named(text: str) -> None:
    with pytest.raises(UsageError, match="token id"):
        parse_tokens(text)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"state": "present"}, "present"),
        ({"state": "written"}, "being written, not readable yet"),
        ({"state": "left", "reason": "room", "ago_s": 12.04, "pressing": "b"},
         "evicted 12s ago to make room for writes of b"),
        ({"state": "left", "reason": "room", "ago_s": 1, "pressing": ""},
         "evicted 1s ago to make room for writes of the nameless namespace"),
        ({"state": "left", "reason": "watermark", "ago_s": 90, "pressing": ""},
         "evicted 1.5min ago as the pool was above its watermark"),
        ({"state": "left", "reason": "quota", "ago_s": 90},
         "evicted 1.5min ago for newer values of its tenant, whose quota was full"),
        ({"state": "left", "reason": "erased", "ago_s": 2}, "erased 2s ago by a client"),
        ({"state": "left", "reason": "purged", "ago_s": 2}, "purged 2s ago with its namespace"),
        ({"state": "left", "reason": "corrupt", "ago_s": 2},
         "dropped 2s ago: its bytes did not match their checksum"),
        ({"state": "unknown", "elsewhere": [], "forgotten": False}, "never stored"),
        ({"state": "unknown", "elsewhere": [], "forgotten": True},
         "never stored, or gone so long ago that it is forgotten"),
        ({"state": "unknown", "elsewhere": ["b"], "forgotten": False},
         "never stored here; b has it: other namespace"),
    ],
)  # fmt: skip
def test_answers_in_words(answer: dict[str, Any], words: str) -> None:
    story = read_story(answer)
    assert story.words() == words
    assert "" not in story.facts().values()


def test_a_block_is_there_if_all_of_its_parts_are() -> None:
    present, evicted = Story("present"), Story("evicted", ago_s=1.0)
    assert story_of_block([present, present]) == present
    assert story_of_block([present, evicted]) == evicted
    assert hit_blocks([present, present, evicted, present]) == 2
    assert hit_blocks([present]) == 1


def test_blocks_of_one_story_are_one_line() -> None:
    stories = [Story("present")] * 3 + [Story("evicted", ago_s=1.1), Story("evicted", ago_s=1.3)]
    assert [(first, end) for first, end, _ in runs(stories)] == [(0, 3), (3, 5)]


def test_keys_of_a_server_that_is_away_say_so_and_it_is_asked_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here, away = Admin("127.0.0.1", 1), Admin("127.0.0.1", 2)
    asked: list[Admin] = []

    def ask(self: Admin, method: str, path: str, query: object = None, body: Any = None) -> Any:
        asked.append(self)
        if self == away:
            raise ConnectError("nobody")
        return {"answers": [{"state": "present"}] * len(body["hex_keys"])}

    monkeypatch.setattr(Admin, "ask", ask)
    servers = Servers(lambda key: (away,) if key.startswith(b"a") else (here,))
    keys = [b"a1", b"b1", b"a2"] + [b"b%d" % i for i in range(2000)]
    states = [story.state for story in servers.ask("space", keys)]
    assert states == ["away", "present", "away"] + ["present"] * 2000
    assert servers.ask("space", [b"a3"])[0].words() == "127.0.0.1:2 is away"
    assert (asked.count(away), asked.count(here)) == (1, 2)


def run(*words: str) -> Any:
    return CliRunner().invoke(explain.command, [*words, "--admin", "127.0.0.1:1"])


def test_with_nobody_there_each_key_says_so() -> None:
    result = run("--key", "a", "--key", "b", "--json")
    assert result.exit_code == 1
    assert [each["state"] for each in json.loads(result.output)["keys"]] == ["away", "away"]
    tokens = " ".join(map(str, TOKENS))
    shown = run("--tokens", tokens, "--namespace", str(SPACE))
    assert shown.exit_code == 1
    assert "block 0: 127.0.0.1:1 is away" in shown.output


def test_with_nobody_there_no_namespace_can_be_guessed() -> None:
    assert isinstance(run("--tokens", "1 2 3").exception, ConnectError)


@pytest.mark.parametrize(
    "words",
    [(), ("--tokens", "1", "--key", "k"), ("--text", "hello")],
)
def test_a_call_that_is_wrong_is_refused(words: tuple[str, ...]) -> None:
    assert run(*words).exit_code == 2


def test_a_prompt_without_a_whole_block_asks_nothing() -> None:
    result = run("--tokens", "1 2 3", "--namespace", str(SPACE))
    assert isinstance(result.exception, UsageError)
    assert "no whole block of 16" in str(result.exception)


def test_a_text_becomes_tokens_by_a_tokenizer_file(tmp_path: Any) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    words = {f"w{i}": i for i in range(50)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    file = tmp_path / "tokenizer.json"
    made.save(str(file))
    assert explain._token_ids(None, None, "w3 w4 w5", None, str(file)) == [3, 4, 5]
    with pytest.raises(UsageError, match="--tokenizer"):
        explain._token_ids(None, None, "w3", None, str(tmp_path / "none.json"))


def test_the_namespace_used_last_is_the_one(monkeypatch: pytest.MonkeyPatch) -> None:
    other = str(dataclasses.replace(SPACE, tenant="other"))

    def ask(self: Admin, method: str, path: str, query: object = None, body: Any = None) -> Any:
        if path == "/cluster":
            return {"node": None}
        if path == "/namespaces":
            idle = {other: 9.0, "default": 1.0, str(SPACE): 2.0, "": None}
            return {"namespaces": [{"namespace": n, "idle_s": at} for n, at in idle.items()]}
        assert body["namespace"] in (str(SPACE), other)
        return {"answers": [{"state": "unknown", "elsewhere": [], "forgotten": False}]
                * len(body["hex_keys"])}  # fmt: skip

    monkeypatch.setattr(Admin, "ask", ask)
    result = run("--tokens", " ".join(map(str, TOKENS)), "--json")
    told = json.loads(result.output)
    assert told["namespace"] == str(SPACE)
    assert [each["state"] for each in told["blocks"]] == ["unknown"] * 6
    assert told["blocks"][1]["block"] == "tokens 16-31"
